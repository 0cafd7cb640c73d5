// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package providernet

import (
	"net/netip"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/networktest"
)

// needNft skips loudly where the rules of managed networks cannot be set.
func needNft(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skipf("SKIPPED: managed networks were NOT TESTED: %v (Debian package nftables)", err)
	}
}

// lab is a managed network for tests.
func lab() Network {
	return Network{Bridge: "lab0", Managed: &Managed{
		Subnet: netip.MustParsePrefix("10.77.0.0/24"), NAT: true, DHCP: true, DNS: []netip.Addr{netip.MustParseAddr("10.77.0.2")},
	}}
}

func anew(dir string, networks map[string]Network) func(t *testing.T) network.Plugin {
	return func(t *testing.T) network.Plugin {
		t.Helper()
		return newPlugin(t, Options{Dir: dir, Networks: networks, AllowBridges: []string{"br*"}})
	}
}

func newPlugin(t *testing.T, o Options) *Plugin {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestItConformsOnABridgeOfTheHost(t *testing.T) {
	if !networktest.InNamespace(t) {
		return
	}
	defer goleak.VerifyNone(t)
	networktest.IP(t, "link add br0 mtu 1400 type bridge")
	networktest.IP(t, "link add br1 type bridge")
	networktest.Conformance(t, networktest.Setup{
		New:     anew(t.TempDir(), map[string]Network{"internet": {Bridge: "br0"}, "intern": {Bridge: "br1", MTU: 9000, Isolated: true}}),
		Request: network.Interface{NetworkID: "internet", IPs: []string{"192.0.2.1", "2001:db8::1"}},
		Same:    &network.Interface{NetworkID: "internet", IPs: []string{"192.0.2.2"}, Attributes: map[string]string{"a": "b"}},
		Other:   &network.Interface{NetworkID: "intern"},
		Bad: map[string]networktest.Bad{
			"no network":          bad(0, "network_id", network.Interface{Name: "a"}),
			"an unknown network":  bad(1, "network_id", network.Interface{NetworkID: "br0"}, network.Interface{NetworkID: "elsewhere"}),
			"a URL":               bad(0, "network_id", network.Interface{NetworkID: "ironcore-net://ns/name/id/uid"}),
			"a path":              bad(0, "network_id", network.Interface{NetworkID: "../br0"}),
			"a device too long":   bad(0, "network_id", network.Interface{NetworkID: "br0123456789abcdef"}),
			"no address":          bad(0, "ips[1]", network.Interface{NetworkID: "internet", IPs: []string{"192.0.2.1", "192.0.2"}}),
			"a scoped address":    bad(0, "ips[0]", network.Interface{NetworkID: "internet", IPs: []string{"fe80::1%eth0"}}),
			"one address for two": bad(1, "ips[1]", network.Interface{NetworkID: "internet", IPs: []string{"192.0.2.1"}}, network.Interface{NetworkID: "internet", IPs: []string{"192.0.2.9", "::ffff:192.0.2.1"}}),
		},
		Occupy: networktest.OccupyTap, Eventful: true,
	})
}

func TestItConformsOnAManagedNetwork(t *testing.T) {
	needNft(t)
	if !networktest.InNamespace(t) {
		return
	}
	defer goleak.VerifyNone(t)
	networktest.Conformance(t, networktest.Setup{
		New:     anew(t.TempDir(), map[string]Network{"lab": lab()}),
		Request: network.Interface{NetworkID: "lab"},
		Same:    &network.Interface{NetworkID: "lab", Attributes: map[string]string{"a": "b"}},
		Other:   &network.Interface{NetworkID: "lab", IPs: []string{"10.77.0.200"}},
		Bad: map[string]networktest.Bad{
			"an address from elsewhere":  bad(0, "ips[0]", network.Interface{NetworkID: "lab", IPs: []string{"10.78.0.1"}}),
			"the gateway's":              bad(0, "ips[0]", network.Interface{NetworkID: "lab", IPs: []string{"10.77.0.1"}}),
			"a name server's":            bad(0, "ips[0]", network.Interface{NetworkID: "lab", IPs: []string{"10.77.0.2"}}),
			"the network's":              bad(0, "ips[0]", network.Interface{NetworkID: "lab", IPs: []string{"10.77.0.0"}}),
			"the broadcast's":            bad(0, "ips[0]", network.Interface{NetworkID: "lab", IPs: []string{"10.77.0.255"}}),
			"two addresses":              bad(0, "ips[1]", network.Interface{NetworkID: "lab", IPs: []string{"10.77.0.8", "10.77.0.9"}}),
			"an address of IPv6":         bad(0, "ips[0]", network.Interface{NetworkID: "lab", IPs: []string{"2001:db8::1"}}),
			"one address for two in one": bad(1, "ips[0]", network.Interface{NetworkID: "lab", IPs: []string{"10.77.0.8"}}, network.Interface{NetworkID: "lab", IPs: []string{"10.77.0.8"}}),
		},
		Occupy: networktest.OccupyTap, Eventful: true,
	})
}

func bad(index int, field string, nics ...network.Interface) networktest.Bad {
	return networktest.Bad{NICs: nics, Index: index, Field: field}
}
