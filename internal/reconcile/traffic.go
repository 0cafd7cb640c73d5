// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// sysClassNet is where Linux shows network devices.
const sysClassNet = "/sys/class/net"

// withTraffic adds what the host's kernel counted of network interfaces that the VMM does not count itself. An interface
// without a device on the host is left out, and so is one whose device cannot be read now.
func (r *Reconciler) withTraffic(id string, counted []vmm.DeviceCounters) []vmm.DeviceCounters {
	taps := map[string]string{}
	r.withDevices(id, func(d *devices) {
		for name, wire := range d.applied {
			if wire.Backend == network.BackendTap && wire.Tap != "" {
				taps[Device{NIC: true, Name: name}.id()] = wire.Tap
			}
		}
	})
	for _, nic := range sortedKeys(taps) {
		if slices.ContainsFunc(counted, func(c vmm.DeviceCounters) bool { return c.Kind == vmm.NICDevice && c.ID == nic }) {
			continue
		}
		if c, ok := traffic(filepath.Join(r.o.classNet, taps[nic])); ok {
			c.Kind, c.ID = vmm.NICDevice, nic
			counted = append(counted, c)
		}
	}
	return counted
}

// traffic reads the statistics of a network device of the host. What a tap receives its guest has sent; a macvtap is on
// the guest's side itself.
func traffic(device string) (c vmm.DeviceCounters, ok bool) {
	rx, tx := [2]*uint64{&c.OutBytes, &c.OutOps}, [2]*uint64{&c.InBytes, &c.InOps}
	if _, err := os.Stat(filepath.Join(device, "macvtap")); err == nil {
		rx, tx = tx, rx
	}
	for name, into := range map[string]*uint64{"rx_bytes": rx[0], "rx_packets": rx[1], "tx_bytes": tx[0], "tx_packets": tx[1]} {
		raw, err := os.ReadFile(filepath.Join(device, "statistics", name))
		if err != nil {
			return c, false
		}
		if *into, err = strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64); err != nil {
			return c, false
		}
	}
	return c, true
}
