// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package providernet

import (
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

var update = flag.Bool("update", false, "write testdata anew")

func TestNetworksThatCannotBeAreRefusedAtStart(t *testing.T) {
	subnet := netip.MustParsePrefix("10.0.0.0/24")
	managed := func(m Managed) map[string]Network { return map[string]Network{"lab": {Managed: &m}} }
	for want, networks := range map[string]map[string]Network{
		"the name has to be":              {"Lab": {Bridge: "br0"}},
		"bridge \"\" is no name":          {"lab": {}},
		"bridge \"br 0\" is no name":      {"lab": {Bridge: "br 0"}},
		"MTU 67 is not between":           {"lab": {Bridge: "br0", MTU: 67}},
		"MTU 65522 is not between":        {"lab": {Bridge: "br0", MTU: 65522}},
		"have the bridge br0, and one is": {"a": {Bridge: "br0"}, "b": {Bridge: "br0", Managed: &Managed{Subnet: subnet}}},
		"subnet invalid Prefix":           managed(Managed{}),
		"subnet 10.0.0.0/31":              managed(Managed{Subnet: netip.MustParsePrefix("10.0.0.0/31")}),
		"subnet fd00::/64":                managed(Managed{Subnet: netip.MustParsePrefix("fd00::/64")}),
		"10.0.0.0/24 is meant":            managed(Managed{Subnet: netip.MustParsePrefix("10.0.0.5/24")}),
		"gateway 10.0.1.1 is no address":  managed(Managed{Subnet: subnet, Gateway: netip.MustParseAddr("10.0.1.1")}),
		"gateway 10.0.0.255 is no":        managed(Managed{Subnet: subnet, Gateway: netip.MustParseAddr("10.0.0.255")}),
		"name server ::1 is not of IPv4":  managed(Managed{Subnet: subnet, DNS: []netip.Addr{netip.MustParseAddr("::1")}}),
	} {
		_, err := New(Options{Dir: t.TempDir(), Networks: networks})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for name, o := range map[string]Options{
		"no directory":   {},
		"a bad pattern":  {Dir: t.TempDir(), AllowBridges: []string{"[a"}},
		"a file instead": {Dir: os.Args[0]},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTheRulesOfAManagedNetwork(t *testing.T) {
	var all strings.Builder
	for _, n := range []struct {
		name    string
		managed Managed
	}{
		{"lab", Managed{Subnet: netip.MustParsePrefix("10.1.2.0/24"), NAT: true, DHCP: true, DNS: []netip.Addr{netip.MustParseAddr("10.1.2.1")}}},
		{"a-network-with.a-long-name", Managed{Subnet: netip.MustParsePrefix("192.168.0.0/16"), Gateway: netip.MustParseAddr("192.168.255.254")}},
	} {
		p, err := New(Options{Dir: t.TempDir(), Networks: map[string]Network{n.name: {Managed: &n.managed}}})
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(p.all()[0].ruleset())
	}
	path := filepath.Join("testdata", "rules.nft")
	if *update {
		if err := os.WriteFile(path, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), all.String()); diff != "" {
		t.Errorf("the rules changed; if that is meant, run with -update: %s", diff)
	}
}

func managedSegment(t *rapid.T, dir string) *segment {
	bits := rapid.IntRange(27, 30).Draw(t, "bits")
	subnet := netip.PrefixFrom(netip.MustParseAddr("10.9.0.0"), bits)
	p, err := New(Options{Dir: dir, Networks: map[string]Network{"lab": {Managed: &Managed{Subnet: subnet, DNS: []netip.Addr{netip.MustParseAddr("10.9.0.2")}}}}})
	if err != nil {
		t.Fatal(err)
	}
	return p.segments["lab"]
}

func TestNoTwoInterfacesHaveOneAddressAndEachKeepsItsOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "leases")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		s := managedSegment(t, dir)
		m := s.network.Managed
		got := map[network.Ref]netip.Addr{}
		names := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"})
		wanted := rapid.SampledFrom([]string{"", "", "10.9.0.3", "10.9.0.4", "10.9.0.5"})
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			r := network.Request{MachineID: "m", Interface: network.Interface{Name: names.Draw(t, "name")}, MAC: "02:00:00:00:00:01"}
			if rapid.Bool().Draw(t, "delete") {
				if err := s.forget(r.Ref()); err != nil {
					t.Fatal(err)
				}
				delete(got, r.Ref())
				continue
			}
			if ip := wanted.Draw(t, "ip"); ip != "" && usable(m.Subnet, netip.MustParseAddr(ip)) {
				r.Interface.IPs = []string{ip}
			}
			before, had := got[r.Ref()], s.ports[r.Ref()].Chosen
			one, err := s.decide(r)
			if errors.Is(err, errInUse) || errors.Is(err, errExhausted) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if had && len(r.Interface.IPs) == 0 && one.IP != before {
				t.Errorf("%s had %s and has %s", r.Ref(), before, one.IP)
			}
			got[r.Ref()] = one.IP
		}
		seen := map[netip.Addr]network.Ref{}
		for ref, ip := range got {
			if other, twice := seen[ip]; twice {
				t.Errorf("%s and %s have %s", ref, other, ip)
			}
			if seen[ip] = ref; !usable(m.Subnet, ip) || ip == m.Gateway {
				t.Errorf("%s has %s", ref, ip)
			}
		}
		p, err := New(Options{Dir: dir, Networks: map[string]Network{"lab": s.network}})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(s.ports, p.segments["lab"].ports, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("after a restart: %s", diff)
		}
	})
}

func TestAFileThatTheHostDoesNotGiveIsNotPutAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lab.json")
	if err := os.Symlink("lab.json", path); err != nil { // reading it fails, whoever tries
		t.Fatal(err)
	}
	if _, err := New(Options{Dir: dir, Networks: map[string]Network{"lab": {Bridge: "br0"}}}); err == nil {
		t.Error("the network begins anew, although its file is there")
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
}

func TestAFileThatCannotBeUnderstoodIsPutAside(t *testing.T) {
	for name, content := range map[string]string{
		"garbage": "{", "of a later version": `{"version": 2, "network": {"bridge": "br0"}}`, "without a bridge": `{"version": 1}`,
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "lab.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := New(Options{Dir: dir, Networks: map[string]Network{"lab": {Bridge: "br0"}}})
		if err != nil || len(p.segments["lab"].ports) != 0 {
			t.Errorf("%s: %v", name, err)
		}
		if kept, err := os.ReadFile(path + ".unreadable"); err != nil || string(kept) != content {
			t.Errorf("%s: kept %q, %v", name, kept, err)
		}
	}
}

func TestTheIdentityIsWhatAGuestNoticesOnlyWithANewDevice(t *testing.T) {
	p, err := New(Options{Dir: t.TempDir(), AllowBridges: []string{"br*"}, Networks: map[string]Network{
		"a": {Bridge: "br0"}, "lab": {Managed: &Managed{Subnet: netip.MustParsePrefix("10.0.0.0/24")}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	identity := func(id string, ips ...string) string { return p.Identity(network.Interface{NetworkID: id, IPs: ips}) }
	if identity("a", "10.0.0.7") != identity("a") {
		t.Error("an address of a bridge of the host, which gives none")
	}
	if identity("lab", "10.0.0.7") == identity("lab", "10.0.0.8") {
		t.Error("an address that the network gives")
	}
	if identity("a") == identity("br0") || identity("a") == identity("lab") {
		t.Error("another network")
	}
}
