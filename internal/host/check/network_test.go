// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
)

func TestWhatNetworksNeedIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		network Network
		have    []string
		want    []string // beginnings of status and detail
	}{
		"nothing asked for":     {},
		"all is there":          {network: Network{Bridges: []string{"br0"}, Managed: []string{"lab"}}, have: []string{"nft"}, want: []string{"ok what the networks"}},
		"no nft":                {network: Network{Managed: []string{"lab", "test"}}, want: []string{"warn nft is not found: no machine starts in lab, test"}},
		"nft is not needed":     {network: Network{Bridges: []string{"br0"}}, want: []string{"ok"}},
		"no bridge":             {network: Network{Bridges: []string{"br0", "br1"}}, want: []string{"warn there is no bridge br1"}},
		"a device that is none": {network: Network{Bridges: []string{"eth0"}}, want: []string{"warn there is no bridge eth0"}},
	} {
		f := &found{Options: Options{Network: c.network}}
		f.Probes.Finder = host.Finder{OS: "linux", LookPath: lookPath(c.have...), FS: fstest.MapFS{
			"sys/class/net/br0/bridge/bridge_id": {}, "sys/class/net/eth0/address": {},
		}}
		items := f.networks()
		if len(items) != len(c.want) {
			t.Fatalf("%s: %+v", name, items)
		}
		for i, item := range items {
			if !strings.HasPrefix(string(item.Status)+" "+item.Detail, c.want[i]) {
				t.Errorf("%s: %+v", name, item)
			}
		}
	}
}
