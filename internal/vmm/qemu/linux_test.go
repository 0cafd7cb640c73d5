// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/qemu"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

// rig is one machine with a real QEMU.
type rig struct {
	*testing.T
	driver  *qemu.Driver
	cfg     vmm.Config
	proc    process.Process
	vm      vmm.VM
	console net.Conn
	text    strings.Builder
	read    int // how much of text was expected already
	shells  int // commands typed
}

func newRef(t *testing.T) vmm.Ref {
	t.Helper()
	dir, err := os.MkdirTemp("", "qemu") // t.TempDir would be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ref := vmm.Ref{MachineID: uuid.NewString(), RuntimeDir: filepath.Join(dir, "r"), StateDir: filepath.Join(dir, "s")}
	if err := os.Mkdir(ref.StateDir, 0o750); err != nil {
		t.Fatal(err)
	}
	return ref
}

func start(t *testing.T, driver *qemu.Driver, cfg vmm.Config) *rig {
	t.Helper()
	r := &rig{T: t, driver: driver, cfg: cfg}
	supervisor, err := process.NewChild(process.Options{})
	r.must("start supervisor", err)
	t.Cleanup(func() { supervisor.Close() })
	spec, err := driver.Prepare(r.ctx(), cfg)
	r.must("prepare", err)
	spec.Marker, spec.Output = "qemu-test/"+cfg.MachineID, filepath.Join(cfg.StateDir, "output")
	r.proc, err = supervisor.Start(r.ctx(), spec)
	r.must("start QEMU", err)
	t.Cleanup(r.end)
	ctx, cancel := context.WithCancel(r.ctx())
	defer cancel()
	go func() {
		select {
		case <-r.proc.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	r.vm, err = driver.Connect(ctx, cfg.Ref)
	r.must("connect", err)
	t.Cleanup(func() { r.vm.Close() })
	r.console, err = net.Dial("unix", r.vm.Console().Socket)
	r.must("connect to console", err)
	t.Cleanup(func() { r.console.Close() })
	return r
}

func (r *rig) end() {
	_ = r.proc.Signal(context.Background(), syscall.SIGKILL)
	<-r.proc.Done()
	if r.Failed() {
		out, _ := os.ReadFile(filepath.Join(r.cfg.StateDir, "output"))
		r.Logf("QEMU said:\n%s\nconsole:\n%s", out, r.text.String())
	}
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.Cleanup(cancel)
	return ctx
}

func (r *rig) must(doing string, err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("%s: %v", doing, err)
	}
}

// expect waits for text on the console behind what was expected before.
func (r *rig) expect(text string) {
	r.Helper()
	r.must("set deadline", r.console.SetReadDeadline(time.Now().Add(patience)))
	buffer := make([]byte, 4096)
	for {
		if i := strings.Index(r.text.String()[r.read:], text); i >= 0 {
			r.read += i + len(text)
			return
		}
		n, err := r.console.Read(buffer)
		r.text.Write(buffer[:n])
		if err != nil {
			r.Fatalf("console did not show %q: %v", text, err)
		}
	}
}

func (r *rig) await(kind vmm.EventKind) vmm.Event {
	r.Helper()
	timeout := time.After(patience)
	for {
		select {
		case e, ok := <-r.vm.Events():
			if !ok {
				r.Fatalf("events ended before %s", kind)
			}
			if e.Kind == kind {
				return e
			}
		case <-timeout:
			r.Fatalf("no event %s", kind)
		}
	}
}

func (r *rig) devices() (disks, nics []string) {
	r.Helper()
	o, err := r.vm.Inspect(r.ctx())
	r.must("inspect", err)
	return o.Disks, o.NICs
}

// linuxConfig is a machine with the test guest, three disks and two NICs.
func linuxConfig(t *testing.T, change ...func(*guest.Options)) vmm.Config {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	o := guest.Options{CacheDir: guest.DefaultCacheDir(), Arch: "amd64"}
	for _, f := range change {
		f(&o)
	}
	files, err := guest.Build(ctx, o)
	if err != nil {
		t.Fatalf("build the guest: %v", err)
	}
	ref := newRef(t)
	root, err := os.ReadFile(files.RootDisk)
	if err != nil {
		t.Fatal(err)
	}
	cfg := vmm.Config{
		Ref: ref, CPUs: 1, MemoryBytes: 256 << 20,
		Boot: vmm.Boot{
			Kernel: files.VMLinux, Initramfs: files.Initramfs,
			CommandLine: guest.DefaultCommandLine("amd64") + " chp.dhcp",
		},
		NICs: []vmm.NIC{
			{ID: "nic-isolated", MAC: "02:00:00:00:00:01", Kind: vmm.NICIsolated},
			{ID: "nic-user", MAC: "02:00:00:00:00:02", Kind: vmm.NICUser},
		},
		Ignition: &vmm.Ignition{Transport: vmm.IgnitionFWCfg, Data: []byte(`{"ignition":{"version":"3.4.0"}}`)},
	}
	for i, size := range []int{len(root), 2 << 20, 3 << 20} {
		path := filepath.Join(ref.StateDir, fmt.Sprintf("disk%d.raw", i))
		content := make([]byte, size)
		if i == 0 {
			copy(content, root)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg.Disks = append(cfg.Disks, vmm.Disk{
			ID: fmt.Sprintf("disk-%d", i), Path: path, Serial: machine.Serial(ref.MachineID, fmt.Sprint(i), "vd"+string(rune('a'+i))),
		})
	}
	return cfg
}

func TestLinuxGuestFindsItsHardwareInOrderAndObeysItsPowerButton(t *testing.T) {
	cfg := linuxConfig(t)
	r := start(t, newDriver(t), cfg)
	r.must("create", r.vm.Create(r.ctx(), cfg))
	r.must("boot", r.vm.Boot(r.ctx()))
	r.expect("guest: ignition source=fw_cfg")
	r.expect("guest: ignition-data " + base64.StdEncoding.EncodeToString(cfg.Ignition.Data))
	for i, disk := range cfg.Disks {
		r.expect(fmt.Sprintf("guest: disk vd%c serial=%s", 'a'+i, disk.Serial))
	}
	for i, nic := range cfg.NICs {
		r.expect(fmt.Sprintf("guest: net eth%d mac=%s", i, nic.MAC))
	}
	r.expect("guest: boot-count 1")
	r.expect("guest: ready login:")

	r.must("reset", r.vm.Reset(r.ctx()))
	r.await(vmm.EventGuestReset)
	r.expect("guest: boot-count 2")
	r.expect("guest: ready login:")

	r.must("press power button", r.vm.PowerButton(r.ctx()))
	if e := r.await(vmm.EventGuestStopped); e.Reason != "guest-shutdown" {
		t.Errorf("the guest stopped because of %q, want guest-shutdown", e.Reason)
	}
	r.must("boot again in the same process", r.vm.Boot(r.ctx()))
	r.expect("guest: boot-count 3")
	r.expect("guest: ready login:")
	// The isolated interface has a link and swallows what is sent: no DHCP
	// answer there, one on the other.
	r.expect("guest: dhcp eth1 ip=10.0.2.15/24")
	if strings.Contains(r.text.String(), "guest: dhcp eth0 ip=") {
		t.Error("the isolated interface got an address")
	}
	r.must("shut down", r.vm.Shutdown(r.ctx()))
	<-r.proc.Done()
	if exit := r.proc.Exit(); !exit.Known || exit.Code != 0 {
		t.Errorf("QEMU ended with %+v", exit)
	}
}

func TestDevicesOfAnEarlierDefinitionAreMended(t *testing.T) {
	ref := newRef(t)
	old := tinyConfig(t, ref)
	r := start(t, newDriver(t), old)
	wanted := tinyConfig(t, ref)
	added := wanted.Disks[1]
	added.ID, added.Serial = "disk-added", "vdc"
	wanted.Disks = []vmm.Disk{wanted.Disks[0], added} // the file changes its device
	wanted.NICs = []vmm.NIC{
		wanted.NICs[0],
		{ID: "nic-added", MAC: "02:00:00:00:00:03", Kind: vmm.NICUser, Forwards: []vmm.PortForward{{GuestPort: 22}}},
		{ID: "nic-lonely", MAC: "02:00:00:00:00:04", Kind: vmm.NICIsolated},
	}
	for range 2 {
		r.must("create", r.vm.Create(r.ctx(), wanted))
		disks, nics := r.devices()
		if diff := cmp.Diff([]string{"disk-added", "disk-root"}, disks); diff != "" {
			t.Errorf("disks (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"nic-added", "nic-isolated", "nic-lonely"}, nics); diff != "" {
			t.Errorf("network interfaces (-want +got):\n%s", diff)
		}
	}
	r.must("create the old one", r.vm.Create(r.ctx(), old))
	r.must("create the wanted one again", r.vm.Create(r.ctx(), wanted))
	r.must("boot", r.vm.Boot(r.ctx()))
	r.expect("READY")
	bigger := wanted
	bigger.MemoryBytes *= 2
	r.must("power off", r.vm.PowerOff(r.ctx()))
	if err := r.vm.Create(r.ctx(), bigger); !machine.IsKind(err, machine.FailedPrecondition) {
		t.Errorf("create with more memory: %v, want failed precondition", err)
	}
}

func TestMachineWithoutFreePortsSaysSo(t *testing.T) {
	ref := newRef(t)
	cfg := tinyConfig(t, ref)
	cfg.Disks = cfg.Disks[:1]
	cfg.NICs = nil
	r := start(t, newDriver(t, func(o *qemu.Options) { o.HotplugPorts = 1 }), cfg)
	for i := range 5 {
		cfg.NICs = append(cfg.NICs, vmm.NIC{ID: fmt.Sprintf("nic-%d", i), MAC: fmt.Sprintf("02:00:00:00:00:%02x", i), Kind: vmm.NICIsolated})
	}
	if err := r.vm.Create(r.ctx(), cfg); !machine.IsKind(err, machine.Exhausted) {
		t.Errorf("create with more devices than ports: %v, want exhausted", err)
	}
}

func TestAPersonOnTheSecondSocketDoesNotDisturb(t *testing.T) {
	cfg := tinyConfig(t, newRef(t))
	r := start(t, newDriver(t), cfg)
	conn, err := net.Dial("unix", filepath.Join(cfg.RuntimeDir, "operator.sock"))
	r.must("connect to the second socket", err)
	defer conn.Close()
	r.must("create", r.vm.Create(r.ctx(), cfg))
	r.must("boot", r.vm.Boot(r.ctx()))
	r.expect("READY")
}

func TestASecondVMMDoesNotGetTheDisk(t *testing.T) {
	cfg := tinyConfig(t, newRef(t))
	start(t, newDriver(t), cfg)
	other := cfg
	other.Ref = newRef(t)
	supervisor, err := process.NewChild(process.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer supervisor.Close()
	spec, err := newDriver(t).Prepare(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	spec.Marker, spec.Output = "qemu-test/"+other.MachineID, filepath.Join(other.StateDir, "output")
	p, err := supervisor.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(patience):
		_ = p.Signal(context.Background(), syscall.SIGKILL)
		t.Fatal("a second QEMU opened a disk that is in use")
	}
	out, _ := os.ReadFile(spec.Output)
	if exit := p.Exit(); exit.Code == 0 || !strings.Contains(string(out), "lock") {
		t.Errorf("exit %+v, output %q; want a complaint about the lock", exit, out)
	}
}

func TestUEFIGuestGetsItsOwnVariables(t *testing.T) {
	fw := qemu.Firmware{Code: "/usr/share/OVMF/OVMF_CODE_4M.fd", Vars: "/usr/share/OVMF/OVMF_VARS_4M.fd"}
	if _, err := os.Stat(fw.Code); err != nil {
		t.Skip("SKIPPED LOUDLY: no OVMF on this host (Debian package ovmf); booting by UEFI is NOT tested")
	}
	cfg := tinyConfig(t, newRef(t))
	r := start(t, newDriver(t, func(o *qemu.Options) { o.Firmware = fw }), cfg)
	r.must("create", r.vm.Create(r.ctx(), cfg))
	r.must("boot", r.vm.Boot(r.ctx()))
	r.expect("BdsDxe") // the firmware's word that it looks for something to boot
	vars := filepath.Join(cfg.StateDir, "uefi-vars.fd")
	st, err := os.Stat(vars)
	r.must("look at variables", err)
	r.must("shut down", r.vm.Shutdown(r.ctx()))
	<-r.proc.Done()
	r.must("clean up", r.driver.Cleanup(r.ctx(), cfg.Ref))
	_, err = r.driver.Prepare(r.ctx(), cfg)
	r.must("prepare again", err)
	if again, err := os.Stat(vars); err != nil || !os.SameFile(st, again) {
		t.Errorf("the variables were made anew: %v", err)
	}
}
