// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmmtest

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

func plugCases() []suiteCase {
	return []suiteCase{
		{"a disk comes, is seen and goes", diskComesAndGoes},
		{"a guest that takes its time keeps its disk until it lets go", diskHeld},
		{"a guest that refuses to let go of a disk loses it when it restarts", diskRefused},
		{"a guest that refuses to let go of a disk loses it when its power is cut", diskRefusedThenOff},
		{"a disk grows and never shrinks", diskGrows},
		{"disks come and go in any order, and their slots come back", disksAtRandom},
		{"devices come and go while no guest runs", plugWhenIdle},
		{"a disk that cannot be plugged in leaves nothing", failedPlug},
		{"a daemon that restarts between the steps finds its way", plugAcrossRestarts},
		{"many plug in one disk at once", plugAtOnce},
		{"a network interface comes and goes", nicComesAndGoes},
		{"plugging again and again leaks nothing", plugLeaks},
	}
}

// Sizes of disks in the cases, in bytes.
const (
	diskSize   = 4 << 20
	biggerDisk = 6 << 20
)

func diskComesAndGoes(b *bench) {
	plug := b.plugger()
	guest := b.up()
	disk := b.newDisk("data", diskSize)
	b.attachDisk(disk, diskSize)
	b.must("attach what is there", plug().AttachDisk(b.ctx(), disk))
	b.wantSeen(guest, disk, diskSize)
	b.must("detach what was never there", plug().DetachDisk(b.ctx(), vmm.DeviceID("disk", "other")))
	b.wantDisks(disk.ID)
	b.detachDisk(disk.ID)
	b.wantClosed(disk.Path)
	b.must("detach what is gone", plug().DetachDisk(b.ctx(), disk.ID))
	b.wantDisks()
	// The medium is free for another device.
	other := disk
	other.ID = vmm.DeviceID("disk", "other")
	b.attachDisk(other, diskSize)
	b.wantDisks(other.ID)
	b.wantState(vmm.StateRunning)
	b.wantSameProcess()
}

// wantHeld is that the disk is still the guest's, and everybody knows that it is on its way.
func (b *bench) wantHeld(disk vmm.Disk) {
	b.Helper()
	o := b.inspect()
	if !contains(o.Disks, disk.ID) {
		b.Fatalf("disks %v: %s is gone although the guest holds it", o.Disks, disk.ID)
	}
	if !contains(o.Leaving, disk.ID) {
		b.Errorf("leaving are %v, want %s among them", o.Leaving, disk.ID)
	}
	b.wantKind("attach a disk that is leaving", b.plugger()().AttachDisk(b.ctx(), disk), machine.FailedPrecondition)
}

// hold plugs a disk into a guest that holds on to it, and asks for it.
func (b *bench) hold() (guest Running, disk vmm.Disk) {
	b.Helper()
	plug := b.plugger()
	b.needs(b.s.Guest.Plug.Hold != nil || b.s.Guest.Plug.Deaf, "be made to hold on to a device")
	guest = b.up()
	disk = b.newDisk("held", diskSize)
	b.attachDisk(disk, diskSize)
	if b.s.Guest.Plug.Hold != nil {
		b.must("make the guest hold on", b.s.Guest.Plug.Hold(b.ctx(), guest, true))
	}
	for range 3 {
		b.must("detach", plug().DetachDisk(b.ctx(), disk.ID))
		b.wantHeld(disk)
	}
	return guest, disk
}

func diskHeld(b *bench) {
	plug := b.plugger()
	b.needs(b.s.Guest.Plug.Hold != nil, "be made to hold on to a device")
	_, disk := b.hold()
	b.restartDaemon()
	b.wantHeld(disk)
	b.must("detach after a restart of the daemon", plug().DetachDisk(b.ctx(), disk.ID))
	b.wantHeld(disk)
	b.must("make the guest let go", b.s.Guest.Plug.Hold(b.ctx(), b.running(), false))
	b.awaitDiskGone(disk.ID)
	b.wantClosed(disk.Path)
	again := b.newDisk("held", biggerDisk)
	b.attachDisk(again, biggerDisk)
	b.wantSameProcess()
}

func diskRefused(b *bench) {
	_, disk := b.hold()
	b.must("reset", b.vm.Reset(b.ctx()))
	b.awaitEvent(vmm.EventGuestReset)
	b.awaitGuest()
	b.awaitDiskGone(disk.ID)
	b.wantClosed(disk.Path)
	b.wantState(vmm.StateRunning)
	b.wantSameProcess()
}

func diskRefusedThenOff(b *bench) {
	_, disk := b.hold()
	b.must("power off", b.vm.PowerOff(b.ctx()))
	b.awaitDiskGone(disk.ID)
	b.wantClosed(disk.Path)
	b.must("boot", b.vm.Boot(b.ctx()))
	b.awaitGuest()
	b.wantDisks()
	b.wantSameProcess()
}

func diskGrows(b *bench) {
	plug := b.plugger()
	guest := b.up()
	disk := b.newDisk("data", diskSize)
	b.attachDisk(disk, diskSize)
	b.wantKind("resize what is not there", plug().ResizeDisk(b.ctx(), vmm.DeviceID("disk", "none"), diskSize), machine.NotFound)
	b.must("resize to what it is", plug().ResizeDisk(b.ctx(), disk.ID, diskSize))
	b.wantSize(disk.ID, diskSize)
	b.grow(disk, biggerDisk)
	for range 2 {
		b.must("resize", plug().ResizeDisk(b.ctx(), disk.ID, biggerDisk))
		b.wantSize(disk.ID, biggerDisk)
	}
	b.wantSeen(guest, disk, biggerDisk)
	b.wantKind("shrink", plug().ResizeDisk(b.ctx(), disk.ID, diskSize), machine.Invalid)
	b.wantSize(disk.ID, biggerDisk)
	if st, err := os.Stat(disk.Path); disk.Path != "" && (err != nil || st.Size() < biggerDisk && disk.Format != vmm.FormatQcow2) {
		b.Errorf("after a refused shrink the file is %v, error %v", st, err)
	}
	b.must("power off", b.vm.PowerOff(b.ctx()))
	b.wantSize(disk.ID, biggerDisk)
	b.wantSameProcess()
}

func plugWhenIdle(b *bench) {
	b.plugger()
	b.start()
	first, second := b.newDisk("first", diskSize), b.newDisk("second", diskSize)
	b.attachDisk(first, 0)
	b.attachDisk(second, 0)
	b.detachDisk(first.ID)
	b.wantDisks(second.ID)
	b.must("boot", b.vm.Boot(b.ctx()))
	b.awaitGuest()
	b.wantDisks(second.ID)
	b.must("power off", b.vm.PowerOff(b.ctx()))
	b.attachDisk(first, 0)
	b.detachDisk(second.ID)
	if nic := b.newNIC("late"); nic != nil {
		b.must("attach network interface", b.plugger()().AttachNIC(b.ctx(), *nic))
		b.wantNICs(nic.ID)
		b.detachNIC(nic.ID)
	}
	b.must("create with what there is now", b.vm.Create(b.ctx(), b.withDisks(first)))
	b.must("boot again", b.vm.Boot(b.ctx()))
	b.awaitGuest()
	b.wantDisks(first.ID)
	b.wantNICs()
	b.wantState(vmm.StateRunning)
	b.wantSameProcess()
}

func failedPlug(b *bench) {
	plug := b.plugger()
	b.up()
	disk := b.newDisk("data", diskSize)
	if disk.Path == "" {
		b.Skip("SKIPPED: the disks of this guest have no path that could be missing")
	}
	away := disk.Path + ".away"
	b.must("take the medium away", os.Rename(disk.Path, away))
	for range 2 {
		b.wantKind("attach a disk without a medium", plug().AttachDisk(b.ctx(), disk), machine.FailedPrecondition, machine.NotFound)
		b.wantDisks()
	}
	b.must("make a directory of it", os.Mkdir(disk.Path, 0o700))
	if err := plug().AttachDisk(b.ctx(), disk); err == nil {
		b.Error("a directory became a disk")
	}
	b.wantDisks()
	b.wantClosed(disk.Path)
	b.must("bring the medium back", os.Remove(disk.Path))
	b.must("bring the medium back", os.Rename(away, disk.Path))
	b.attachDisk(disk, diskSize)
	b.detachDisk(disk.ID)
	bad := b.newDisk("bad", diskSize)
	bad.ID = "no such, id"
	if err := plug().AttachDisk(b.ctx(), bad); !machine.IsKind(err, machine.Invalid) {
		b.Errorf("attach with an impossible id: %v, want invalid", err)
	}
	b.wantDisks()
	if b.driver.Capabilities().TapNIC {
		nic := vmm.NIC{ID: vmm.DeviceID("nic", "bad"), MAC: "02:00:00:00:0b:ad", Kind: vmm.NICTap, Tap: "/no/such/tap"}
		if err := plug().AttachNIC(b.ctx(), nic); err == nil {
			b.Error("a tap with an impossible name became a network interface")
		}
		b.wantNICs()
	}
	b.wantState(vmm.StateRunning)
	b.wantSameProcess()
}

func plugAcrossRestarts(b *bench) {
	plug := b.plugger()
	b.up()
	disk := b.newDisk("data", diskSize)
	b.attachDisk(disk, diskSize)
	b.restartDaemon()
	b.wantDisks(disk.ID)
	b.must("attach again", plug().AttachDisk(b.ctx(), disk))
	b.restartDaemon()
	b.must("detach", plug().DetachDisk(b.ctx(), disk.ID))
	b.restartDaemon()
	if b.s.Guest.Plug.Deaf {
		b.must("reset", b.vm.Reset(b.ctx()))
	}
	b.awaitDiskGone(disk.ID)
	b.wantClosed(disk.Path)
	b.restartDaemon()
	b.wantDisks()
	b.attachDisk(disk, diskSize)
	b.wantSameProcess()
}

func plugAtOnce(b *bench) {
	plug := b.plugger()
	b.up()
	disk := b.newDisk("data", diskSize)
	ctx := b.ctx()
	b.atOnce("attach", func() error { return plug().AttachDisk(ctx, disk) })
	b.wantDisks(disk.ID)
	b.atOnce("detach and inspect", func() error {
		if err := plug().DetachDisk(ctx, disk.ID); err != nil {
			return err
		}
		_, err := b.vm.Inspect(ctx)
		return err
	})
	b.detachDisk(disk.ID)
	b.wantSameProcess()
}

func nicComesAndGoes(b *bench) {
	plug := b.plugger()
	nic := b.newNIC("late")
	b.needs(nic != nil, "get one more network interface")
	b.up()
	for range 2 {
		b.must("attach", plug().AttachNIC(b.ctx(), *nic))
		b.must("attach again", plug().AttachNIC(b.ctx(), *nic))
		b.wantNICs(nic.ID)
		b.restartDaemon()
		b.detachNIC(nic.ID)
		b.must("detach what is gone", plug().DetachNIC(b.ctx(), nic.ID))
	}
	b.wantNICs()
	b.wantState(vmm.StateRunning)
	b.wantSameProcess()
}

// plugLeaks counts what the VMM has open. A deaf guest is taken out while it does not run.
func plugLeaks(b *bench) {
	b.plugger()
	if b.s.Guest.Plug.Deaf {
		b.start()
	} else {
		b.up()
	}
	disk := b.newDisk("data", diskSize)
	cycle := func() {
		b.attachDisk(disk, 0)
		b.detachDisk(disk.ID)
	}
	cycle() // what is made once for ever is made now
	before := b.vmmDescriptors()
	start := time.Now()
	for range b.s.Guest.Plug.Cycles {
		cycle()
	}
	b.Logf("%d cycles took %s", b.s.Guest.Plug.Cycles, time.Since(start).Round(time.Millisecond))
	// What is worth a cache in the VMM may vary by a few; a leak does not.
	if after := b.vmmDescriptors(); len(after) > len(before)+2 {
		b.Errorf("before there were %d descriptors, now %d: %v", len(before), len(after), after)
	}
	b.wantSameProcess()
}

// newDisk makes a disk that the machine does not have yet.
func (b *bench) newDisk(name string, size int64) vmm.Disk {
	b.Helper()
	if b.s.Guest.Plug.Disk != nil {
		return b.s.Guest.Plug.Disk(b.T, b.cfg.Ref, name, size)
	}
	path := filepath.Join(b.cfg.StateDir, fmt.Sprintf("plug-%s-%d.raw", name, size))
	f, err := os.Create(path)
	b.must("make a disk", err)
	b.must("make a disk", f.Truncate(size))
	b.must("make a disk", f.Close())
	return vmm.Disk{ID: vmm.DeviceID("disk", name), Path: path, Serial: "plug-" + name}
}
