// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

func netDevice(t *testing.T, dir, name string, macvtap bool, files map[string]string) {
	t.Helper()
	stats := filepath.Join(dir, name, "statistics")
	if err := os.MkdirAll(stats, 0o755); err != nil {
		t.Fatal(err)
	}
	if macvtap {
		if err := os.Mkdir(filepath.Join(dir, name, "macvtap"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(stats, file), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheKernelCountsForAVMMThatDoesNot(t *testing.T) {
	dir := t.TempDir()
	counts := map[string]string{"rx_bytes": "1000", "rx_packets": "10", "tx_bytes": "200", "tx_packets": "2"}
	netDevice(t, dir, "tap0", false, counts)
	netDevice(t, dir, "mac0", true, counts)
	netDevice(t, dir, "bad0", false, map[string]string{"rx_bytes": "many"})
	r := &Reconciler{devices: map[string]*devices{}}
	r.o.classNet = dir
	r.withDevices("m", func(d *devices) {
		for nic, tap := range map[string]string{"a": "tap0", "b": "mac0", "c": "bad0", "d": "gone0", "e": "tap0"} {
			d.applied[nic] = network.Result{Backend: network.BackendTap, Tap: tap}
		}
		d.applied["f"] = network.Result{Backend: network.BackendUser}
	})
	own := vmm.DeviceCounters{Kind: vmm.NICDevice, ID: "nic-e", InBytes: 7}
	disk := vmm.DeviceCounters{Kind: vmm.DiskDevice, ID: "disk-a", InBytes: 1}
	want := []vmm.DeviceCounters{
		disk, own,
		{Kind: vmm.NICDevice, ID: "nic-a", InBytes: 200, InOps: 2, OutBytes: 1000, OutOps: 10},
		{Kind: vmm.NICDevice, ID: "nic-b", InBytes: 1000, InOps: 10, OutBytes: 200, OutOps: 2},
	}
	if diff := cmp.Diff(want, r.withTraffic("m", []vmm.DeviceCounters{disk, own})); diff != "" {
		t.Error(diff)
	}
}
