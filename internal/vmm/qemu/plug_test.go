// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// connectFake connects to a fake that is asked for what changes devices.
func connectFake(t *testing.T, f *fakeQMP) vmm.Plugger {
	t.Helper()
	d, err := New(Options{Binary: "qemu", Accelerator: TCG, Architecture: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	vm, err := d.Connect(t.Context(), f.ref)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vm.Close() })
	return vm.(vmm.Plugger)
}

const (
	cephKey    = "QVFDbEtleUZvclRlc3Rz"
	passphrase = "a pass\x01phrase"
)

func rbdDisk() vmm.Disk {
	return vmm.Disk{ID: "disk-ceph", Serial: "vdb-1", Cache: vmm.CacheNone, RBD: &vmm.RBD{
		Monitors: []string{"192.0.2.1:6789", "[2001:db8::1]:3300"}, Pool: "p", Image: "i", User: "u", Key: cephKey, Passphrase: passphrase,
	}}
}

func TestRBDImageIsOpenedByQEMUAndItsSecretsDoNotStay(t *testing.T) {
	f := newFakeQMP(t)
	if err := connectFake(t, f).AttachDisk(t.Context(), rbdDisk()); err != nil {
		t.Fatal(err)
	}
	cache := `"cache":{"direct":true,"no-flush":false}`
	want := strings.Join([]string{
		`object-add {"data":"` + cephKey + `","format":"base64","id":"k-disk-ceph","qom-type":"secret"}`,
		`object-add {"data":"YSBwYXNzAXBocmFzZQ==","format":"base64","id":"l-disk-ceph","qom-type":"secret"}`,
		`blockdev-add {` + cache + `,"discard":"unmap","driver":"raw","file":{"auth-client-required":["cephx"],` + cache +
			`,"conf":"` + filepath.Join(f.ref.RuntimeDir, "rbd.conf") + `","discard":"unmap","driver":"rbd","encrypt":{"format":"luks2","key-secret":"l-disk-ceph"},` +
			`"image":"i","key-secret":"k-disk-ceph","node-name":"p-disk-ceph","pool":"p",` +
			`"server":[{"host":"192.0.2.1","port":"6789"},{"host":"2001:db8::1","port":"3300"}],"user":"u"},"node-name":"b-disk-ceph"}`,
		`object-del {"id":"k-disk-ceph"}`,
		`object-del {"id":"l-disk-ceph"}`,
		`device_add {"bus":"rp0","drive":"b-disk-ceph","driver":"virtio-blk-pci","id":"disk-ceph","rerror":"report","serial":"vdb-1","werror":"enospc","write-cache":"on"}`,
	}, "\n")
	if diff := cmp.Diff(want, f.sent()); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	st, err := os.Stat(filepath.Join(f.ref.RuntimeDir, "rbd.conf"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("settings of librados: %v, error %v", st, err)
	}
}

func TestRBDImageThatCannotBeOpenedLeavesNoSecret(t *testing.T) {
	for refused, kind := range map[string]machine.Kind{
		"error connecting: Operation not permitted":      machine.FailedPrecondition,
		"Parameter 'driver' does not accept value 'rbd'": machine.Unimplemented,
	} {
		f := newFakeQMP(t)
		f.refuse["blockdev-add"] = refused
		err := connectFake(t, f).AttachDisk(t.Context(), rbdDisk())
		if !machine.IsKind(err, kind) || !strings.Contains(err.Error(), refused) {
			t.Errorf("%v, want %v with QEMU's words", err, kind)
		}
		if strings.Contains(err.Error(), cephKey) || strings.Contains(err.Error(), "phrase") {
			t.Errorf("a secret is in the error: %v", err)
		}
		if len(f.objects)+len(f.nodes) > 0 || f.devices["disk-ceph"] != "" {
			t.Errorf("left: objects %v, nodes %v, devices %v", f.objects, f.nodes, f.devices)
		}
	}
}

// vhostServer listens and does no more.
func vhostServer(t *testing.T, f *fakeQMP) string {
	t.Helper()
	path := filepath.Join(f.ref.RuntimeDir, "vu.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return path
}

func TestRefusedDeviceTakesItsPartsAlong(t *testing.T) {
	f := newFakeQMP(t)
	f.refuse["device_add"] = "no"
	plug := connectFake(t, f)
	limited := vmm.Disk{ID: "disk-a", Path: "/dev/null/x", Limits: vmm.IOLimits{TotalOps: 1}}
	limited.Path = filepath.Join(f.ref.StateDir, "disk")
	if err := os.WriteFile(limited.Path, make([]byte, 512), 0o600); err != nil {
		t.Fatal(err)
	}
	disks := []vmm.Disk{rbdDisk(), limited}
	if runtime.GOOS == "linux" {
		disks = append(disks, vmm.Disk{ID: "disk-vu", VhostUser: vhostServer(t, f)})
	}
	for _, disk := range disks {
		if err := plug.AttachDisk(t.Context(), disk); err == nil {
			t.Error("no error")
		}
	}
	if len(f.objects)+len(f.nodes)+len(f.chardevs) > 0 {
		t.Errorf("left: objects %v, nodes %v, chardevs %v", f.objects, f.nodes, f.chardevs)
	}
	for _, want := range []string{
		`object-add {"id":"t-disk-a","limits":{"iops-total":1},"qom-type":"throttle-group"}`,
		`"driver":"throttle"`,
	} {
		if !strings.Contains(f.sent(), want) {
			t.Errorf("%s was not sent, only:\n%s", want, f.sent())
		}
	}
}

func TestVhostUserAndPCIFunctionsArePluggedIn(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: both exist on Linux only")
	}
	f := newFakeQMP(t)
	plug := connectFake(t, f)
	socket := vhostServer(t, f)
	if err := plug.AttachDisk(t.Context(), vmm.Disk{ID: "disk-vu", VhostUser: socket}); err != nil {
		t.Fatal(err)
	}
	nobody := vmm.Disk{ID: "disk-nobody", VhostUser: socket + ".gone"}
	if err := plug.AttachDisk(t.Context(), nobody); !machine.IsKind(err, machine.FailedPrecondition) {
		t.Errorf("a server that is not there: %v, want failed precondition", err)
	}
	if err := plug.ResizeDisk(t.Context(), "disk-vu", 1<<20); !machine.IsKind(err, machine.Unimplemented) {
		t.Errorf("resize behind a server's back: %v, want unimplemented", err)
	}
	if err := plug.AttachNIC(t.Context(), vmm.NIC{ID: "nic-vf", Kind: vmm.NICPCI, PCI: "0000:3b:02.1"}); err != nil {
		t.Fatal(err)
	}
	if err := plug.DetachNIC(t.Context(), "nic-vf"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`chardev-add {"backend":{"data":{"addr":{"data":{"path":"` + socket + `"},"type":"unix"},"reconnect":1,"server":false},"type":"socket"},"id":"c-disk-vu"}`,
		`device_add {"bus":"rp0","chardev":"c-disk-vu","driver":"vhost-user-blk-pci","id":"disk-vu","num-queues":1}`,
		`device_add {"bus":"rp1","driver":"vfio-pci","host":"0000:3b:02.1","id":"nic-vf","rombar":0}`,
		`device_del {"id":"nic-vf"}`,
	} {
		if !strings.Contains(f.sent(), want) {
			t.Errorf("%s was not sent, only:\n%s", want, f.sent())
		}
	}
	if len(f.objects) > 0 {
		t.Errorf("the request is still remembered: %v", f.objects)
	}
}

func TestDevicesThatAreNotPossibleAreRefused(t *testing.T) {
	rbd := func(change func(*vmm.RBD)) vmm.Disk {
		d := rbdDisk()
		change(d.RBD)
		return d
	}
	for name, disk := range map[string]vmm.Disk{
		"no source":                  {ID: "disk-a"},
		"two sources":                {ID: "disk-a", Path: "/a", VhostUser: "/b"},
		"negative limit":             {ID: "disk-a", Path: "/a", Limits: vmm.IOLimits{ReadOps: -1}},
		"limit in total and in part": {ID: "disk-a", Path: "/a", Limits: vmm.IOLimits{ReadOps: 1, TotalOps: 2}},
		"no monitor":                 rbd(func(r *vmm.RBD) { r.Monitors = nil }),
		"monitor without port":       rbd(func(r *vmm.RBD) { r.Monitors = []string{"192.0.2.1"} }),
		"no pool":                    rbd(func(r *vmm.RBD) { r.Pool = "" }),
		"key that is no base64":      rbd(func(r *vmm.RBD) { r.Key = "%" }),
	} {
		if err := validateDisk(disk); !machine.IsKind(err, machine.Invalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
	for name, disk := range map[string]vmm.Disk{
		"unknown policy": {ID: "disk-a", Path: "/a", Cache: "fast"},
		"unknown format": {ID: "disk-a", Path: "/a", Format: "vmdk"},
		"qcow2 in Ceph":  {ID: "disk-a", RBD: rbdDisk().RBD, Format: vmm.FormatQcow2},
		"limits beyond":  {ID: "disk-a", VhostUser: "/a", Limits: vmm.IOLimits{ReadOps: 1}},
	} {
		if err := validateDisk(disk); !machine.IsKind(err, machine.Unimplemented) {
			t.Errorf("%s: %v, want unimplemented", name, err)
		}
	}
	for name, nic := range map[string]vmm.NIC{
		"PCI address of a kind": {ID: "nic-a", Kind: vmm.NICPCI, PCI: "3b:02.1"},
		"tiny MTU":              {ID: "nic-a", MAC: "02:00:00:00:00:01", Kind: vmm.NICIsolated, MTU: 10},
		"tap with a path":       {ID: "nic-a", MAC: "02:00:00:00:00:01", Kind: vmm.NICTap, Tap: "../x"},
		"too many queues":       {ID: "nic-a", MAC: "02:00:00:00:00:01", Kind: vmm.NICTap, Tap: "t", Queues: 1000},
	} {
		if err := validateNIC(nic); !machine.IsKind(err, machine.Invalid) && runtime.GOOS == "linux" {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}

func TestPolicyThatTheFileSystemCannotKeepIsNamed(t *testing.T) {
	const file = "/proc/version" // no file of proc can be read past the page cache
	if _, err := os.Stat(file); err != nil {
		t.Skip("SKIPPED: no /proc")
	}
	for _, policy := range []vmm.CachePolicy{vmm.CacheNone, vmm.CacheDirectSync} {
		_, err := checkMedium(vmm.Disk{ID: "disk-a", Path: file, Cache: policy})
		if !machine.IsKind(err, machine.FailedPrecondition) || !strings.Contains(err.Error(), string(policy)) {
			t.Errorf("%s: %v", policy, err)
		}
	}
	if _, err := checkMedium(vmm.Disk{ID: "disk-a", Path: file}); err != nil {
		t.Error(err)
	}
}

func TestDevicesKeepTheirPlaces(t *testing.T) {
	config := func(disks, nics string) vmm.Config {
		cfg := vmm.Config{}
		for _, id := range strings.Fields(disks) {
			cfg.Disks = append(cfg.Disks, vmm.Disk{ID: id})
		}
		for _, id := range strings.Fields(nics) {
			cfg.NICs = append(cfg.NICs, vmm.NIC{ID: id})
		}
		return cfg
	}
	s := slots{}.arrange(config("root a b", "n"), 8)
	want := slots{Boot: "root", Ports: map[string]int{"root": 0, "a": 1, "b": 2, "n": 3}}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("first start (-want +got):\n%s", diff)
	}
	// a goes, c comes: while the machine runs c does not take a's place, since a may come back.
	if got := s.choose("c", []int{1, 4, 5}); got != 4 {
		t.Errorf("place of a new device %d, want 4", got)
	}
	s.claim("c", 4)
	if got := s.choose("a", []int{1, 5}); got != 1 {
		t.Errorf("place of one that comes back %d, want 1", got)
	}
	if got := s.choose("d", []int{1}); got != 1 {
		t.Errorf("the last place %d, want 1", got)
	}
	if got := s.choose("d", nil); got != -1 {
		t.Errorf("place %d where there is none", got)
	}
	s = s.arrange(config("root b c d", "n"), 8)
	want = slots{Boot: "root", Ports: map[string]int{"root": 0, "b": 2, "n": 3, "c": 4, "d": 1}}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("next start (-want +got):\n%s", diff)
	}
	dir := t.TempDir()
	if err := s.save(dir); err != nil {
		t.Fatal(err)
	}
	if back, err := loadSlots(dir); err != nil || !cmp.Equal(back, s) {
		t.Errorf("read back %v, error %v", back, err)
	}
	if err := os.WriteFile(filepath.Join(dir, slotsFile), []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if back, err := loadSlots(dir); err != nil || len(back.Ports) != 0 {
		t.Errorf("of a broken file %v, error %v", back, err)
	}
}
