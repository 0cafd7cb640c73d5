// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

func TestADiskIsToldToTheVMMInFull(t *testing.T) {
	for name, c := range map[string]struct {
		in   vmm.Disk
		want api.Disk
	}{
		"plain":           {vmm.Disk{ID: "disk-a", Path: "/a", Serial: "s"}, api.Disk{ID: "disk-a", Path: "/a", Serial: "s", ImageType: "Raw"}},
		"unbuffered":      {vmm.Disk{Path: "/a", Cache: vmm.CacheNone}, api.Disk{Path: "/a", Direct: true, ImageType: "Raw"}},
		"write back":      {vmm.Disk{Path: "/a", Cache: vmm.CacheWriteBack}, api.Disk{Path: "/a", ImageType: "Raw"}},
		"never flushed":   {vmm.Disk{Path: "/a", Cache: vmm.CacheUnsafe}, api.Disk{Path: "/a", ImageType: "Raw"}},
		"qcow2":           {vmm.Disk{Path: "/a", Format: vmm.FormatQcow2}, api.Disk{Path: "/a", ImageType: "Qcow2", BackingFiles: true}},
		"read only":       {vmm.Disk{Path: "/a", ReadOnly: true}, api.Disk{Path: "/a", ReadOnly: true, ImageType: "Raw"}},
		"by another":      {vmm.Disk{VhostUser: "/s", Cache: vmm.CacheNone}, api.Disk{VhostUser: true, VhostSocket: "/s", ImageType: "Raw"}},
		"bounded bytes":   {vmm.Disk{Path: "/a", Limits: vmm.IOLimits{TotalBytes: 1 << 20}}, api.Disk{Path: "/a", ImageType: "Raw", RateLimiter: &api.RateLimiter{Bandwidth: &api.TokenBucket{Size: 1 << 20, RefillTime: 1000}}}},
		"bounded request": {vmm.Disk{Path: "/a", Limits: vmm.IOLimits{TotalOps: 500}}, api.Disk{Path: "/a", ImageType: "Raw", RateLimiter: &api.RateLimiter{Ops: &api.TokenBucket{Size: 500, RefillTime: 1000}}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, diskOf(c.in)); diff != "" {
				t.Errorf("disk (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatADiskOrInterfaceCannotBeIsRefusedByName(t *testing.T) {
	file := func(change func(*vmm.Disk)) vmm.Disk {
		d := vmm.Disk{ID: "disk-a", Path: "/a"}
		change(&d)
		return d
	}
	for name, c := range map[string]struct {
		disk  vmm.Disk
		kind  machine.Kind
		names string
	}{
		"Ceph by itself":       {file(func(d *vmm.Disk) { d.RBD = &vmm.RBD{} }), machine.Unimplemented, "rbd"},
		"two media":            {file(func(d *vmm.Disk) { d.VhostUser = "/s" }), machine.Invalid, "vhost-user"},
		"a relative path":      {file(func(d *vmm.Disk) { d.Path = "a" }), machine.Invalid, "path"},
		"a relative socket":    {vmm.Disk{ID: "disk-a", VhostUser: "s"}, machine.Invalid, "vhostUser"},
		"too long a socket":    {vmm.Disk{ID: "disk-a", VhostUser: "/" + strings.Repeat("s", 107)}, machine.Invalid, "vhostUser"},
		"write through":        {file(func(d *vmm.Disk) { d.Cache = vmm.CacheWriteThrough }), machine.Unimplemented, "cache"},
		"direct and sync":      {file(func(d *vmm.Disk) { d.Cache = vmm.CacheDirectSync }), machine.Unimplemented, "cache"},
		"some cache":           {file(func(d *vmm.Disk) { d.Cache = "fast" }), machine.Invalid, "cache"},
		"some format":          {file(func(d *vmm.Disk) { d.Format = "vmdk" }), machine.Unimplemented, "format"},
		"qcow2 of a server":    {vmm.Disk{ID: "disk-a", VhostUser: "/s", Format: vmm.FormatQcow2}, machine.Invalid, "format"},
		"reads bounded":        {file(func(d *vmm.Disk) { d.Limits.ReadBytes = 1 }), machine.Unimplemented, "readBytes"},
		"writes bounded":       {file(func(d *vmm.Disk) { d.Limits.WriteOps = 1 }), machine.Unimplemented, "writeOps"},
		"less than nothing":    {file(func(d *vmm.Disk) { d.Limits.TotalOps = -1 }), machine.Invalid, "totalOps"},
		"a server bounded":     {vmm.Disk{ID: "disk-a", VhostUser: "/s", Limits: vmm.IOLimits{TotalOps: 1}}, machine.Unimplemented, "limits"},
		"an id of another":     {file(func(d *vmm.Disk) { d.ID = "nic-a" }), machine.Invalid, "id"},
		"an id of the VMM":     {file(func(d *vmm.Disk) { d.ID = "__rng" }), machine.Invalid, "id"},
		"an id of our own":     {file(func(d *vmm.Disk) { d.ID = configDiskID }), machine.Invalid, "id"},
		"nothing, that it can": {file(func(*vmm.Disk) {}), machine.Unknown, ""},
	} {
		t.Run("a disk with "+name, func(t *testing.T) {
			wantRefused(t, validateDisk("disk", c.disk, map[string]bool{}), c.kind, c.names)
		})
	}
	tap := func(change func(*vmm.NIC)) vmm.NIC {
		n := vmm.NIC{ID: "nic-a", MAC: "02:00:00:00:00:01", Kind: vmm.NICTap, Tap: "tap0"}
		change(&n)
		return n
	}
	for name, c := range map[string]struct {
		nic   vmm.NIC
		kind  machine.Kind
		names string
	}{
		"no tap":               {tap(func(n *vmm.NIC) { n.Tap = "" }), machine.Invalid, "tap"},
		"too long a name":      {tap(func(n *vmm.NIC) { n.Tap = "a123456789012345" }), machine.Invalid, "tap"},
		"a path":               {tap(func(n *vmm.NIC) { n.Tap = "../../tap" }), machine.Invalid, "tap"},
		"no MAC":               {tap(func(n *vmm.NIC) { n.MAC = "" }), machine.Invalid, "mac"},
		"more queues than CPU": {tap(func(n *vmm.NIC) { n.Queues = 3 }), machine.Invalid, "queues"},
		"a tiny MTU":           {tap(func(n *vmm.NIC) { n.MTU = 67 }), machine.Invalid, "mtu"},
		"user mode":            {tap(func(n *vmm.NIC) { n.Kind = vmm.NICUser }), machine.Unimplemented, "user"},
		"some kind":            {tap(func(n *vmm.NIC) { n.Kind = "wire" }), machine.Invalid, "kind"},
		"some PCI address":     {vmm.NIC{ID: "nic-a", Kind: vmm.NICPCI, PCI: "3b:02.1"}, machine.Invalid, "pci"},
		"a PCI function":       {vmm.NIC{ID: "nic-a", Kind: vmm.NICPCI, PCI: "0000:3b:02.1"}, machine.Unknown, ""},
		"queues for each CPU":  {tap(func(n *vmm.NIC) { n.Queues, n.MTU = 2, 9000 }), machine.Unknown, ""},
	} {
		t.Run("a network interface with "+name, func(t *testing.T) {
			wantRefused(t, validateNIC("nic", c.nic, 2, map[string]bool{}), c.kind, c.names)
		})
	}
	d := driverFor("amd64")
	cfg := testConfig()
	for _, id := range []string{"nic-x", "nic-y"} {
		cfg.NICs = append(cfg.NICs, vmm.NIC{ID: id, Kind: vmm.NICPCI, PCI: "0000:3b:02.1"})
	}
	wantRefused(t, d.Validate(cfg), machine.Invalid, "0000:3b:02.1")
}

func wantRefused(t *testing.T, err error, kind machine.Kind, names string) {
	t.Helper()
	switch {
	case kind == machine.Unknown && err != nil:
		t.Errorf("error is %v, want none", err)
	case kind != machine.Unknown && (!machine.IsKind(err, kind) || !strings.Contains(err.Error(), names)):
		t.Errorf("error is %v, want %v with %q in it", err, kind, names)
	}
}

func TestEveryPolicyThatIsClaimedIsTakenAndNoneIsWeakened(t *testing.T) {
	strength := map[vmm.CachePolicy]int{
		vmm.CacheUnsafe: 0, vmm.CacheWriteBack: 1, vmm.CacheNone: 1, vmm.CacheWriteThrough: 2, vmm.CacheDirectSync: 2,
	}
	for path, policies := range driverFor("amd64").Capabilities().Cache {
		for policy := range strength {
			d := vmm.Disk{ID: "disk-a", Cache: policy}
			if d.Path = "/a"; path == vmm.PathVhostUser {
				d.Path, d.VhostUser = "", "/s"
			}
			got, claimed := policies[policy]
			if err := validateDisk("disk", d, map[string]bool{}); claimed != (err == nil) {
				t.Errorf("%s of a %s: claimed %v, error %v", policy, path, claimed, err)
			}
			if claimed && strength[got] < strength[policy] {
				t.Errorf("%s of a %s becomes %s", policy, path, got)
			}
		}
	}
}

func TestOnlyWhatTheGuestCanHaveSeenIsHeld(t *testing.T) {
	text := func(s string) *string { return &s }
	info := api.Info{
		Config: api.VMConfig{
			Disks:   []api.Disk{{ID: "disk-here"}, {ID: configDiskID}},
			Net:     []api.Net{{ID: "nic-here"}},
			Devices: []api.Device{{ID: "nic-vf"}},
		},
		DeviceTree: map[string]api.DeviceNode{
			"disk-here": {Parent: text("_virtio-pci-disk-here")}, "disk-leaving": {Parent: text("_virtio-pci-disk-leaving")},
			"disk-without-slot": {}, "nic-vf": {PCIBDF: text("0000:00:05.0")}, "nic-vf-leaving": {PCIBDF: text("0000:00:06.0")},
			"__rng": {Parent: text("_virtio-pci-__rng")}, configDiskID: {Parent: text("_virtio-pci-" + configDiskID)},
			"_virtio-pci-disk-leaving": {PCIBDF: text("0000:00:04.0")},
		},
	}
	h := holdingsOf(info)
	for _, c := range []struct{ want, got []string }{
		{[]string{"disk-here", "disk-leaving"}, h.all(disks)},
		{[]string{"nic-here", "nic-vf", "nic-vf-leaving"}, h.all(nics)},
		{[]string{"disk-leaving", "nic-vf-leaving"}, h.leavingIDs()},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("devices (-want +got):\n%s", diff)
		}
	}
}

func TestSectorsOfAnotherSizeAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		bytes int64
		known bool
		kind  machine.Kind
	}{
		"as small as ever": {512, true, machine.Unknown},
		"larger":           {4096, true, machine.Unimplemented},
		"nobody knows":     {0, false, machine.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkSectors("disk", vmm.Disk{Path: "/a", Cache: vmm.CacheNone}, func(string) (int64, bool) { return c.bytes, c.known })
			wantRefused(t, err, c.kind, "4096")
		})
	}
}
