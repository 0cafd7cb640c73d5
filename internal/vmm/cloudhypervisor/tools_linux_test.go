// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech"
)

// realRig launches a real VMM with the smallest guest.
func realRig(t *testing.T, change func(o *cloudhypervisor.Options)) *rig {
	t.Helper()
	binary, version := realBinary(t)
	o := cloudhypervisor.Options{Binary: binary, Version: version}
	change(&o)
	r := rigFor(t, newDriver(t, o), func(t *testing.T, ref vmm.Ref) vmm.Config { return directBoot(t, ref, vmmtest.TinyGuest()) })
	r.launch()
	return r
}

func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("SKIPPED: %s is not on this host, so the real VMM was not tried with it", name)
	}
	return path
}

func TestRealQcow2ImagesAreTakenGrownAndKept(t *testing.T) {
	img := tool(t, "qemu-img")
	r := realRig(t, func(*cloudhypervisor.Options) {})
	make := func(d vmm.Disk, args ...string) vmm.Disk {
		d.Format = vmm.FormatQcow2
		out, err := exec.CommandContext(t.Context(), img, append(append([]string{"create", "-q", "-f", "qcow2"}, args...), d.Path, "4M")...).CombinedOutput()
		if err != nil {
			t.Fatalf("qemu-img: %v\n%s", err, out)
		}
		return d
	}
	base := r.disk("base")
	plain := make(r.disk("plain"))
	overlay := make(r.disk("overlay"), "-b", base.Path, "-F", "raw")
	r.boot()
	r.must("attach", r.plug().AttachDisk(r.ctx(), plain))
	r.must("attach an overlay", r.plug().AttachDisk(r.ctx(), overlay))
	for range 2 {
		r.must("resize", r.plug().ResizeDisk(r.ctx(), plain.ID, 8<<20))
	}
	r.wantKind("shrink", r.plug().ResizeDisk(r.ctx(), plain.ID, 4<<20), machine.Invalid)
	r.wantKind("resize an overlay", r.plug().ResizeDisk(r.ctx(), overlay.ID, 8<<20), machine.Unimplemented)
	r.must("shut down", r.vm.Shutdown(r.ctx()))
	r.awaitEnd()
	for _, d := range []vmm.Disk{plain, overlay} {
		if out, err := exec.CommandContext(t.Context(), img, "check", "-q", d.Path).CombinedOutput(); err != nil {
			t.Errorf("qemu-img check of %s: %v\n%s", d.ID, err, out)
		}
	}
}

// A storage daemon of QEMU takes one client at a time: the question whether it answers must not keep the VMM out.
func TestARealStorageDaemonIsAskedAndThenServesTheVMM(t *testing.T) {
	daemon := tool(t, "qemu-storage-daemon")
	r := realRig(t, func(o *cloudhypervisor.Options) { o.SharedMemory = true })
	medium := r.disk("served")
	d := vmm.Disk{ID: medium.ID, VhostUser: filepath.Join(r.cfg.RuntimeDir, "blk.sock")}
	cmd := exec.CommandContext(t.Context(), daemon,
		"--blockdev", "driver=file,node-name=f,filename="+medium.Path,
		"--export", "type=vhost-user-blk,id=e,node-name=f,writable=on,writethrough=on,addr.type=unix,addr.path="+d.VhostUser)
	cmd.Stderr = os.Stderr
	r.must("start the storage daemon", cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(d.VhostUser); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	r.boot()
	start := time.Now()
	r.must("attach", r.plug().AttachDisk(r.ctx(), d))
	t.Logf("attached after %s", time.Since(start).Round(time.Millisecond))
	r.wantKind("resize", r.plug().ResizeDisk(r.ctx(), d.ID, 2<<20), machine.Unimplemented)
	// The server has its one client now: another disk on it is refused, soon and without a word to the VMM.
	other := d
	other.ID = vmm.DeviceID("disk", "other")
	start = time.Now()
	r.wantKind("attach once more", r.plug().AttachDisk(r.ctx(), other), machine.Unavailable)
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	r.must("detach", r.plug().DetachDisk(r.ctx(), d.ID))
	r.must("reset", r.vm.Reset(r.ctx()))
	r.await("it has left", func(o vmm.Observation) bool { return !slices.Contains(o.Disks, d.ID) })
	for range 3 { // the server is free again, and boots ask it, too
		r.must("power off", r.vm.PowerOff(r.ctx()))
		r.cfg.Disks = append(r.cfg.Disks[:2:2], d)
		r.boot()
	}
}

// What the filesystem of the tests wants of unbuffered requests decides which half of this is tested.
func TestAGuestIsNotShownOtherSectorsForTheSakeOfAPolicy(t *testing.T) {
	r := newRig(t, fakech.Script{})
	r.boot()
	d := r.disk("unbuffered")
	d.Cache = vmm.CacheNone
	var st unix.Statx_t
	f, err := os.OpenFile(d.Path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Skipf("SKIPPED: the filesystem of the tests has no unbuffered requests: %v", err)
	}
	defer f.Close()
	r.must("statx", unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st))
	t.Logf("unbuffered requests must be aligned to %d bytes", st.Dio_offset_align)
	err = r.plug().AttachDisk(r.ctx(), d)
	if st.Mask&unix.STATX_DIOALIGN != 0 && max(st.Dio_offset_align, st.Dio_mem_align) > 512 {
		r.wantKind("attach", err, machine.Unimplemented)
		r.must("power off", r.vm.PowerOff(r.ctx()))
		r.cfg.Disks = append(r.cfg.Disks, d)
		r.wantKind("create", r.vm.Create(r.ctx(), r.cfg), machine.Unimplemented)
		return
	}
	r.must("attach", err)
	info, err := r.raw().Info(r.ctx())
	r.must("info", err)
	if last := info.Config.Disks[len(info.Config.Disks)-1]; !last.Direct {
		t.Errorf("the disk is %+v", last)
	}
}
