// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config/document"
)

func TestTheDefaultIsReadBackFromItsOwnDocument(t *testing.T) {
	want := config.Default()
	got, report := amd64().Load(reading(string(want.YAML())), "c.yaml")
	if len(report.Problems) > 0 {
		t.Fatal(report.Problems)
	}
	if d := cmp.Diff(want, *got, comparing); d != "" {
		t.Error(d)
	}
}

func drawPath(t *rapid.T, label string) string {
	part := rapid.StringMatching(`[a-zA-Z0-9 :#'"%{}\\,&*!|>@\x{e9}\x{2028}\x{1f600}~-]{1,6}`)
	return "/" + strings.Join(rapid.SliceOfN(part, 1, 3).Draw(t, label), "/")
}

func drawConfig(t *rapid.T) config.Config {
	c := config.Default()
	n := func(label string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(t, label) }
	d := func(label string, lo, hi time.Duration) time.Duration {
		return time.Duration(rapid.Int64Range(int64(lo), int64(hi)).Draw(t, label))
	}
	c.StateDir = "/s" + drawPath(t, "state")
	c.RuntimeDir = rapid.StringMatching(`/r-[a-z #:'-]{1,48}`).Draw(t, "run")
	c.IRI.Group = rapid.SampledFrom([]string{"", "0", "1000", "yes", "null", "kvm", "_x-1$"}).Draw(t, "group")
	c.IRI.RequestTimeout = d("timeout", time.Second, 10*time.Minute)
	c.Hypervisor.QEMU.Firmware = drawPath(t, "firmware")
	c.Hypervisor.QEMU.HotplugPorts = n("ports", 1, 40)
	c.Capacity.ReservedCPUs = n("cpus", 0, 4096)
	c.Capacity.ReservedMemory = rapid.Int64Range(0, 1<<50).Draw(t, "memory")
	c.Capacity.CPUOvercommit = rapid.Float64Range(1, 100).Draw(t, "overcommit")
	c.Events.TTL = d("ttl", time.Minute+1, 24*time.Hour)
	c.Events.SweepInterval = min(c.Events.TTL, d("sweep", time.Second, time.Hour))
	c.Console.LogMaxBytes = rapid.Int64Range(64<<10, 1<<30).Draw(t, "log")
	c.Log.Level = rapid.SampledFrom([]string{"debug", "info", "warn", "error"}).Draw(t, "level")
	c.Images.PlainHTTP = rapid.SliceOfN(rapid.SampledFrom([]string{"a", "true", "10", "localhost:5000", "[::1]:1"}), 0, 3).Draw(t, "plain")
	c.Images.Reserve = document.Amount{Percent: n("reserve", 1, 90)}
	if rapid.Bool().Draw(t, "budget in bytes") {
		c.Images.Budget = document.Amount{Bytes: rapid.Int64Range(1<<20, 1<<62).Draw(t, "budget")}
	}
	if len(c.Images.PlainHTTP) == 0 {
		c.Images.PlainHTTP = nil
	}
	c.Volumes.KeepDetached = d("keep", time.Second, 720*time.Hour)
	c.Volumes.CachePolicy = rapid.SampledFrom([]string{"none", "writeback", "writethrough", "directsync", "unsafe"}).Draw(t, "cache")
	c.Volumes.LocalDisk.Limits.ReadBytes = rapid.Int64Range(0, 1<<40).Draw(t, "read bytes")
	c.Volumes.LocalDisk.Limits.TotalOps = n("ops", 0, 1_000_000_000)
	if rapid.Bool().Draw(t, "user") {
		c.Hypervisor.Driver, c.Network.Plugin = config.DriverQEMU, config.NetworkUser
		for i := range n("forwards", 0, 3) {
			f := config.Forward{HostAddress: netip.MustParseAddr("127.0.0.1"), HostPort: uint16(i + 1), GuestPort: uint16(n("port", 1, 65535))}
			c.Network.User.Forwards = append(c.Network.User.Forwards, f)
		}
	}
	c.Network.ProviderNet.Networks = drawNetworks(t, &c)
	if rapid.Bool().Draw(t, "apinet") {
		c.Network.APINet = config.APINet{
			NodeName: "node-1.example", Kubeconfig: "/k", BootstrapKubeconfig: "/b", RotateCertificates: rapid.Bool().Draw(t, "rotate"),
			EgressSelectorConfig: "/e", QPS: float64(n("qps", 0, 10000)), Burst: n("burst", 0, 10000),
		}
	}
	for i := range n("classes", 0, 3) {
		c.MachineClasses.Inline = append(c.MachineClasses.Inline, class.Class{
			Name: fmt.Sprintf("c%d", i),
			// The index keeps capability maps apart, for equal ones are warned of.
			Resources: map[string]int64{"cpu": int64(i + 1), "memory": rapid.Int64Range(1, 1<<60).Draw(t, "m"), "nvidia.com/gpu": 1},
		})
	}
	return c
}

// drawNetworks makes networks only for the plugin that has them: others are warned of.
func drawNetworks(t *rapid.T, c *config.Config) []config.ProviderNetwork {
	if c.Network.Plugin != config.NetworkIsolated || !rapid.Bool().Draw(t, "providernet") {
		return nil
	}
	c.Network.Plugin = config.NetworkProviderNet
	c.Network.ProviderNet.AllowBridges = rapid.SliceOfN(rapid.SampledFrom([]string{"br*", "no", "0"}), 1, 3).Draw(t, "allow")
	var out []config.ProviderNetwork
	for i := range rapid.IntRange(0, 3).Draw(t, "networks") {
		n := config.ProviderNetwork{
			Name: fmt.Sprintf("%d-n", i), MTU: rapid.SampledFrom([]int{0, 68, 65521}).Draw(t, "mtu"), Isolated: rapid.Bool().Draw(t, "isolated"),
			Bridge: fmt.Sprintf("br%d", i),
		}
		if rapid.Bool().Draw(t, "managed") {
			subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 24)
			n.Managed = &config.ManagedNetwork{Subnet: subnet, NAT: rapid.Bool().Draw(t, "nat"), DHCP: rapid.Bool().Draw(t, "dhcp")}
			n.Managed.DNS = rapid.SampledFrom([][]netip.Addr{nil, {netip.MustParseAddr("9.9.9.9"), subnet.Addr().Next()}}).Draw(t, "dns")
			if rapid.Bool().Draw(t, "named") {
				n.Bridge, n.Managed.Gateway = "", subnet.Addr().Next()
			}
		}
		out = append(out, n)
	}
	return out
}

func TestAnyConfigurationIsReadBackFromItsOwnDocument(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawConfig(t)
		doc := want.YAML()
		got, report := amd64().Load(reading(string(doc)), "c.yaml")
		if len(report.Problems) > 0 {
			t.Fatalf("%v\n%s", report.Problems, doc)
		}
		if d := cmp.Diff(want, *got, comparing); d != "" {
			t.Fatalf("%s\n%s", d, doc)
		}
	})
}

func FuzzLoadNeverPanicsAndWhatItAcceptsIsStable(f *testing.F) {
	standard := config.Default()
	f.Add(standard.YAML())
	for _, body := range []string{
		"", "log: {level: debug}\n", "log:\n\tlevel: x\n", "log: [", "? a\n: b\n", "log: &a {level: *a}\n", "<<: {a: b}\n",
		"images:\n  plainHTTP: [a, 'b', \"c\"]\n", "machineClasses: {inline: [{metadata: {name: a}, capabilities: {cpu: 1, memory: 1e3}}]}\n",
		"stateDir: |\n  /a\n", "stateDir: >-\n  /a\n", "capacity: {cpuOvercommit: .inf}\n", "%YAML 1.2\n---\n", "...\n---\n---\n", "iri: !!map {}\n",
		"network: {plugin: user, user: {forwards: ['127.0.0.1:1-:1']}}\n", "- - - - -\n", "{{{{\n", "\"stateDir\": \"\\u0000\"\n",
	} {
		f.Add([]byte(header + body))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, report := amd64().Load(func(string) ([]byte, error) { return data, nil }, "c.yaml")
		if report.Err() != nil {
			return
		}
		again, report := amd64().Load(reading(string(cfg.YAML())), "c.yaml")
		if report.Err() != nil {
			t.Fatalf("%v\n%s", report.Err(), cfg.YAML())
		}
		if !bytes.Equal(cfg.YAML(), again.YAML()) {
			t.Fatalf("%s\nbecomes\n%s", cfg.YAML(), again.YAML())
		}
	})
}
