// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

func (r *rig) plug() vmm.Plugger { return r.vm.(vmm.Plugger) }

// bootLinux boots the test guest with its root disk alone.
func bootLinux(t *testing.T) *rig {
	t.Helper()
	cfg := linuxConfig(t)
	cfg.Disks, cfg.NICs, cfg.Ignition = cfg.Disks[:1], nil, nil
	r := start(t, newDriver(t), cfg)
	r.must("create", r.vm.Create(r.ctx(), cfg))
	r.must("boot", r.vm.Boot(r.ctx()))
	r.expect("guest: ready login:")
	return r
}

// file makes a sparse file.
func (r *rig) file(name string, size int64) string {
	r.Helper()
	path := filepath.Join(r.cfg.StateDir, name)
	f, err := os.Create(path)
	r.must("make a file", err)
	r.must("make a file", f.Truncate(size))
	r.must("make a file", f.Close())
	return path
}

// gone detaches until nothing is left.
func (r *rig) gone(id string, detach func() error) {
	r.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		r.must("detach "+id, detach())
		disks, nics := r.devices()
		if !slices.Contains(disks, id) && !slices.Contains(nics, id) {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("%s does not go", id)
		}
	}
}

// shell runs a command in the guest and waits for its end.
func (r *rig) shell(command string) {
	r.Helper()
	r.shells++
	_, err := fmt.Fprintf(r.console, "%s; echo shell-$((%d+1000))\n", command, r.shells)
	r.must("type", err)
	r.expect(fmt.Sprintf("shell-%d", r.shells+1000))
}

// soon does something a few times, waits each time until the guest has seen it, and logs how long that took at best: a
// second at most on an idle host, which no test can know it is on.
func (r *rig) soon(what string, times int, do func(i int) (seen string, undo func())) {
	r.Helper()
	best := time.Duration(1 << 62)
	for i := range times {
		began := time.Now()
		seen, undo := do(i)
		r.expect(seen)
		best = min(best, time.Since(began))
		if undo != nil {
			undo()
		}
	}
	r.Logf("%s: seen by the guest after %s", what, best.Round(time.Millisecond))
}

func TestLinuxGuestSeesDisksComeGrowAndGo(t *testing.T) {
	r := bootLinux(t)
	disk := vmm.Disk{
		ID: "disk-data", Path: r.file("data.raw", 4<<20), Serial: "vdb-data",
		Limits: vmm.IOLimits{TotalOps: 1000, WriteBytes: 50 << 20},
	}
	detach := func() {
		r.gone(disk.ID, func() error { return r.plug().DetachDisk(r.ctx(), disk.ID) })
		r.expect("guest: disk- vdb")
	}
	r.soon("attach", 3, func(i int) (string, func()) {
		r.must("attach", r.plug().AttachDisk(r.ctx(), disk))
		if i == 2 {
			return "guest: disk+ vdb serial=vdb-data bytes=4194304", nil
		}
		return "guest: disk+ vdb serial=vdb-data bytes=4194304", detach
	})
	r.soon("resize of a raw file", 3, func(i int) (string, func()) {
		size := int64(8+i) << 20
		r.must("grow the file", os.Truncate(disk.Path, size))
		r.must("resize", r.plug().ResizeDisk(r.ctx(), disk.ID, size))
		return fmt.Sprintf("guest: resize vdb bytes=%d", size), nil
	})
	if err := r.plug().ResizeDisk(r.ctx(), disk.ID, 64<<20); !machine.IsKind(err, machine.FailedPrecondition) {
		t.Errorf("resize beyond the medium: %v, want failed precondition", err)
	}
	// A medium that is larger than asked for is shown as it is, and never cut off.
	r.must("grow the file", os.Truncate(disk.Path, 32<<20))
	r.must("resize to less than there is", r.plug().ResizeDisk(r.ctx(), disk.ID, 16<<20))
	r.expect(fmt.Sprintf("guest: resize vdb bytes=%d", 32<<20))
	if st, err := os.Stat(disk.Path); err != nil || st.Size() != 32<<20 {
		t.Errorf("the medium is %v, error %v", st, err)
	}
	detach()
	qcow2InGuest(r)
	tapInGuest(r)
	r.must("shut down", r.vm.Shutdown(r.ctx()))
}

func qcow2InGuest(r *rig) {
	r.Helper()
	img, err := exec.LookPath("qemu-img")
	if err != nil {
		r.Log("SKIPPED LOUDLY IN PART: no qemu-img (Debian package qemu-utils), so no qcow2 disk is tested")
		return
	}
	base, path := r.file("base.raw", 4<<20), filepath.Join(r.cfg.StateDir, "overlay.qcow2")
	out, err := exec.CommandContext(r.ctx(), img, "create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", path).CombinedOutput()
	if err != nil {
		r.Fatalf("%v: %s", err, out)
	}
	disk := vmm.Disk{ID: "disk-overlay", Path: path, Format: vmm.FormatQcow2, Serial: "vdb-overlay"}
	r.must("attach", r.plug().AttachDisk(r.ctx(), disk))
	r.expect("guest: disk+ vdb serial=vdb-overlay bytes=4194304")
	r.must("resize", r.plug().ResizeDisk(r.ctx(), disk.ID, 12<<20))
	r.expect("guest: resize vdb bytes=12582912")
	if err := r.plug().ResizeDisk(r.ctx(), disk.ID, 4<<20); !machine.IsKind(err, machine.Invalid) {
		r.Errorf("shrink: %v, want invalid", err)
	}
	r.gone(disk.ID, func() error { return r.plug().DetachDisk(r.ctx(), disk.ID) })
	r.expect("guest: disk- vdb")
}

// tapInGuest hands a multi-queue tap to QEMU, which could not open it by itself.
func tapInGuest(r *rig) {
	r.Helper()
	name := fmt.Sprintf("chpt%d", os.Getpid()%100000)
	ip := func(args ...string) error {
		out, err := exec.CommandContext(r.ctx(), "ip", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := ip("tuntap", "add", name, "mode", "tap", "multi_queue"); err != nil {
		r.Logf("SKIPPED LOUDLY IN PART: no tap can be made here (%v), so none is tested", err)
		return
	}
	defer func() { r.must("remove tap", ip("link", "del", name)) }()
	nic := vmm.NIC{ID: "nic-tap", MAC: "02:00:00:00:00:77", Kind: vmm.NICTap, Tap: name, Queues: 2, MTU: 1400}
	single := nic
	single.Queues = 0
	if err := r.plug().AttachNIC(r.ctx(), single); !machine.IsKind(err, machine.FailedPrecondition) {
		r.Errorf("one queue of a tap that has many: %v, want failed precondition", err)
	}
	for range 2 {
		r.must("attach", r.plug().AttachNIC(r.ctx(), nic))
		r.expect("guest: net+ eth0 mac=" + nic.MAC)
		r.shell("cat /sys/class/net/eth0/mtu")
		if !strings.Contains(r.text.String(), "\n1400\r\n") {
			r.Error("the guest does not show the MTU of its network interface")
		}
		if n := r.open("/dev/net/tun"); n != nic.Queues {
			r.Errorf("QEMU has %d queues of the tap, want %d", n, nic.Queues)
		}
		r.gone(nic.ID, func() error { return r.plug().DetachNIC(r.ctx(), nic.ID) })
		r.expect("guest: net- eth0")
	}
	if left := r.open("/dev/net/tun"); left > 0 {
		r.Errorf("%d descriptors of the tap are left in QEMU", left)
	}
	missing := nic
	missing.Tap = name + "x"
	if err := r.plug().AttachNIC(r.ctx(), missing); !machine.IsKind(err, machine.FailedPrecondition) {
		r.Errorf("attach a tap that is missing: %v, want failed precondition", err)
	}
}

// open counts QEMU's descriptors of a file.
func (r *rig) open(path string) (n int) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.proc.Identity().PID))
	for _, l := range links {
		if target, err := os.Readlink(l); err == nil && target == path {
			n++
		}
	}
	return n
}

func TestFullHostPausesTheGuestUntilThereIsSpace(t *testing.T) {
	small := t.TempDir()
	if err := syscall.Mount("none", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("SKIPPED LOUDLY: no small file system can be mounted here (%v); a full host is NOT tested", err)
	}
	defer func() {
		if err := syscall.Unmount(small, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	r := bootLinux(t)
	path := filepath.Join(small, "disk.raw")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.must("make a disk", os.Truncate(path, 8<<20))
	disk := vmm.Disk{ID: "disk-data", Path: path, Serial: "vdb-data"}
	r.must("attach", r.plug().AttachDisk(r.ctx(), disk))
	r.expect("guest: disk+ vdb")
	_, err := io.WriteString(r.console, "dd if=/dev/zero of=/dev/vdb bs=65536 count=48 conv=fsync && echo all-$((40+2))\n")
	r.must("type", err)
	full := func() {
		t.Helper()
		if e := r.await(vmm.EventProblem); e.Device != disk.ID || e.Reason != "no space left on the host" {
			t.Errorf("event %+v", e)
		}
		// The event is told before QEMU stops the processors.
		for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			o, err := r.vm.Inspect(r.ctx())
			r.must("inspect", err)
			if o.State == vmm.StatePaused {
				if want := "disk-data: no space left on the host"; o.Problem != want {
					t.Errorf("problem %q, want %q", o.Problem, want)
				}
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("state %s, want paused", o.State)
			}
		}
	}
	full()
	r.must("go on without space", r.vm.Boot(r.ctx()))
	full()
	r.must("make space", syscall.Mount("none", small, "tmpfs", syscall.MS_REMOUNT, "size=16m"))
	r.must("go on", r.vm.Boot(r.ctx()))
	r.expect("all-42")
	if o, err := r.vm.Inspect(r.ctx()); err != nil || o.State != vmm.StateRunning || o.Problem != "" {
		t.Errorf("afterwards %+v, error %v", o, err)
	}
	r.gone(disk.ID, func() error { return r.plug().DetachDisk(r.ctx(), disk.ID) })
}

func TestPluggingAgainAndAgainWithoutAGuestLeavesNothing(t *testing.T) {
	cfg := tinyConfig(t, newRef(t))
	r := start(t, newDriver(t), cfg)
	r.must("create", r.vm.Create(r.ctx(), cfg))
	disk := vmm.Disk{ID: "disk-data", Path: r.file("data.raw", 4<<20), Limits: vmm.IOLimits{TotalOps: 1}}
	cycle := func() {
		t.Helper()
		r.must("attach", r.plug().AttachDisk(t.Context(), disk))
		r.must("detach", r.plug().DetachDisk(t.Context(), disk.ID))
	}
	count := func() int {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.proc.Identity().PID))
		return len(links)
	}
	cycle()
	// A cycle takes some 30 ms where nothing else runs; where much does, a quarter of a minute of them has to do.
	before, began, cycles := count(), time.Now(), 0
	for cycles < 1000 && (cycles < 50 || time.Since(began) < 15*time.Second) {
		cycle()
		cycles++
	}
	t.Logf("%d cycles of %s", cycles, time.Since(began)/time.Duration(cycles))
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	disks, _ := r.devices()
	if slices.Contains(disks, disk.ID) || r.open(disk.Path) > 0 {
		t.Errorf("left: disks %v", disks)
	}
	r.must("boot", r.vm.Boot(r.ctx()))
	r.expect("READY")
}

func TestClusterThatDoesNotAnswerIsGivenUp(t *testing.T) {
	cfg := tinyConfig(t, newRef(t))
	r := start(t, newDriver(t), cfg)
	r.must("create", r.vm.Create(r.ctx(), cfg))
	disk := vmm.Disk{ID: "disk-ceph", RBD: &vmm.RBD{
		Monitors: []string{"127.0.0.1:1"}, Pool: "p", Image: "i", User: "u", Key: "AQABAQEBAQEBARAAa2tra2tra2tra2tra2traw==", Passphrase: "x",
	}}
	began := time.Now()
	err := r.plug().AttachDisk(r.ctx(), disk)
	if machine.IsKind(err, machine.Unimplemented) {
		t.Skipf("SKIPPED LOUDLY: %v; RBD is NOT tested against QEMU", err)
	}
	t.Logf("after %s: %v", time.Since(began), err)
	if !machine.IsKind(err, machine.FailedPrecondition) || time.Since(began) > time.Minute {
		t.Errorf("after %s: %v, want failed precondition", time.Since(began), err)
	}
	disks, _ := r.devices()
	if slices.Contains(disks, disk.ID) {
		t.Errorf("disks %v", disks)
	}
}

// The disk is the one that firmware boots from, and is plugged in by Create: the order of booting must follow.
func TestBootDiskOfAStorageDaemonComesAndGoes(t *testing.T) {
	daemon, err := exec.LookPath("qemu-storage-daemon")
	if err != nil {
		t.Skip("SKIPPED LOUDLY: no qemu-storage-daemon (Debian package qemu-system-common); vhost-user is NOT tested")
	}
	cfg := tinyConfig(t, newRef(t))
	path, socket := cfg.Disks[0].Path, filepath.Join(cfg.StateDir, "vu.sock")
	cfg.Disks[0] = vmm.Disk{ID: "disk-served", VhostUser: socket}
	r := start(t, newDriver(t), cfg)
	cmd := exec.Command(daemon,
		"--blockdev", "driver=file,node-name=f,filename="+path,
		"--export", "type=vhost-user-blk,id=e,node-name=f,writable=on,addr.type=unix,addr.path="+socket)
	r.must("start the storage daemon", cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the storage daemon does not listen")
		}
	}
	r.must("create", r.vm.Create(r.ctx(), cfg))
	r.must("boot", r.vm.Boot(r.ctx()))
	r.expect("READY")
	for _, off := range []bool{false, true} {
		if off {
			r.must("power off", r.vm.PowerOff(r.ctx()))
		}
		if disks, _ := r.devices(); !slices.Contains(disks, "disk-served") {
			t.Errorf("disks %v", disks)
		}
		r.gone("disk-served", func() error { return r.plug().DetachDisk(r.ctx(), "disk-served") })
		r.must("attach", r.plug().AttachDisk(r.ctx(), cfg.Disks[0]))
		if off {
			r.must("boot", r.vm.Boot(r.ctx()))
		} else {
			r.must("reset", r.vm.Reset(r.ctx()))
		}
		r.expect("READY")
	}
}
