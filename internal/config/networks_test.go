// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
)

func TestBadNetworksAreReportedWithPlacePathAndSuggestion(t *testing.T) {
	// The body is a network's own and starts at line 6.
	const top = header + "network:\n  plugin: providernet\n  providernet: {networks: {\n"
	for name, c := range map[string]struct{ body, want string }{
		"an unknown key": {"a: {brigde: br0}", `
c.yaml:6:5: error: network.providernet.networks.a.brigde: unknown key; did you mean bridge?`},
		"a managed key in the wrong place": {"a: {bridge: br0, nat: true}", `
c.yaml:6:18: error: network.providernet.networks.a.nat: unknown key; put it below managed`},
		"an unknown managed key": {"a: {managed: {subnet: 10.0.0.0/24, gatway: 10.0.0.1}}", `
c.yaml:6:36: error: network.providernet.networks.a.managed.gatway: unknown key; did you mean gateway?`},
		"no bridge": {"a: {mtu: 1500}", `
c.yaml:6:1: error: network.providernet.networks.a: names no bridge; add bridge, or managed for a network that the daemon makes`},
		"no subnet": {"a: {managed: {nat: true}}", `
c.yaml:6:1: error: network.providernet.networks.a.managed: names no subnet; add subnet, such as 10.1.2.0/24`},
		"an MTU out of range": {"a: {bridge: br0, mtu: 70000}", `
c.yaml:6:23: error: network.providernet.networks.a.mtu: 70000 is above the greatest value of 65521`},
		"an MTU in quotes": {"a: {bridge: br0, mtu: '1500'}", `
c.yaml:6:23: error: network.providernet.networks.a.mtu: want an integer, found the string "1500"`},
		"no device": {"a: {bridge: a-name-that-is-too-long}", `
c.yaml:6:13: error: network.providernet.networks.a.bridge: "a-name-that-is-too-long" is no name of a network device`},
		"a subnet with bits behind its mask": {"a: {managed: {subnet: 10.1.2.3/24}}", `
c.yaml:6:23: error: network.providernet.networks.a.managed.subnet: "10.1.2.3/24" has bits behind its mask; write 10.1.2.0/24`},
		"a subnet of one address": {"a: {managed: {subnet: 10.1.2.3/32}}", `
c.yaml:6:23: error: network.providernet.networks.a.managed.subnet: "10.1.2.3/32" is not between /8 and /30`},
		"a subnet of IPv6": {"a: {managed: {subnet: 'fd00::/64'}}", `
c.yaml:6:23: error: network.providernet.networks.a.managed.subnet: "fd00::/64" is no IPv4 subnet; write it like 10.1.2.0/24`},
		"a gateway elsewhere": {"a: {managed: {subnet: 10.1.2.0/24, gateway: 10.1.3.1}}", `
c.yaml:6:1: error: network.providernet.networks.a.managed.gateway: 10.1.3.1 is no address for a host in 10.1.2.0/24; use 10.1.2.1`},
		"a name server without an address": {"a: {managed: {subnet: 10.1.2.0/24, dns: [9.9.9.9, dns.example]}}", `
c.yaml:6:51: error: network.providernet.networks.a.managed.dns[1]: "dns.example" is no IPv4 address`},
		"one name server for a list": {"a: {managed: {subnet: 10.1.2.0/24, dns: 9.9.9.9}}", `
c.yaml:6:41: error: network.providernet.networks.a.managed.dns: want a list of IPv4 addresses, found the string "9.9.9.9"`},
		"a name that no file can have": {"A/b: {bridge: br0}", `
c.yaml:6:1: error: network.providernet.networks.A/b: network name "A/b" is not of 1 to 63 small letters, digits, dots and hyphens`},
		"a bridge instead of a network": {"a: br0", `
c.yaml:6:4: error: network.providernet.networks.a: want a mapping with bridge or managed, found the string "br0"`},
		"subnets that overlap": {"a: {managed: {subnet: 10.0.0.0/8}}, b: {managed: {subnet: 10.1.2.0/24}}", `
c.yaml:5:27: error: network.providernet.networks: subnets 10.0.0.0/8 of a and 10.1.2.0/24 of b overlap`},
		"one bridge for two": {"a: {bridge: br0}, b: {bridge: br0, managed: {subnet: 10.1.2.0/24}}", `
c.yaml:5:27: error: network.providernet.networks: a and b have the bridge br0, and one of them is managed`},
		"no network at all": {"", `
c.yaml:4:11: warning: network.plugin: there is no network that a machine could name; set network.providernet.networks or network.providernet.allowBridges`},
	} {
		t.Run(name, func(t *testing.T) {
			_, report := amd64().Load(reading(top+c.body+"\n  }}\n"), "c.yaml")
			if d := cmp.Diff(strings.TrimSpace(c.want), lines(report)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestNetworksOfAnotherPluginAndOnAnotherSystemAreTold(t *testing.T) {
	_, report := load(t, amd64(), header+"network: {providernet: {allowBridges: ['br*'], networks: {a: {bridge: br0}}}}\n")
	want := `c.yaml:3:39: warning: network.providernet.allowBridges: has no effect with network.plugin isolated; set network.plugin to providernet
c.yaml:3:58: warning: network.providernet.networks: has no effect with network.plugin isolated; set network.plugin to providernet`
	if d := cmp.Diff(want, lines(report)); d != "" {
		t.Error(d)
	}
	_, report = load(t, amd64(), header+"network: {plugin: providernet, providernet: {allowBridges: ['[']}}\n", "--network-providernet-network=a,mtu=x")
	want = `c.yaml:3:61: error: network.providernet.allowBridges[0]: "[" is no pattern of bridges; write a bridge's name, or a pattern such as br*
--network-providernet-network: error: network.providernet.networks: mtu: "x" is not a decimal integer`
	if d := cmp.Diff(want, lines(report)); d != "" {
		t.Error(d)
	}
	mac := amd64()
	mac.GOOS = "darwin"
	_, report = load(t, mac, "", "--network-interface-plugin-name=providernet", "--network-providernet-allow-bridges=br0")
	if got := lines(report); !strings.Contains(got, "bridges need Linux, this is darwin; use user") {
		t.Error(got)
	}
}

func lines(report *config.Report) string {
	var out []string
	for _, p := range report.Problems {
		out = append(out, p.String())
	}
	return strings.Join(out, "\n")
}
