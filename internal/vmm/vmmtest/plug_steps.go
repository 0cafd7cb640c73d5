// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmmtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// plugger is the ability of the VM that is connected when the returned function is called.
func (b *bench) plugger() func() vmm.Plugger {
	b.Helper()
	if !b.driver.Capabilities().HotPlug {
		b.Skip("SKIPPED: this driver does not claim that devices can come and go")
	}
	return func() vmm.Plugger {
		b.Helper()
		plug, ok := b.vm.(vmm.Plugger)
		if !ok {
			b.Fatal("the driver claims that devices can come and go, but its VM is no Plugger")
		}
		return plug
	}
}

// plugCalls are all calls of a Plugger, none if the driver does not claim to have one.
func (b *bench) plugCalls(vm vmm.VM) map[string]func(context.Context) error {
	plug, ok := vm.(vmm.Plugger)
	if !ok || !b.driver.Capabilities().HotPlug {
		return nil
	}
	disk := b.newDisk("stranger", diskSize)
	calls := map[string]func(context.Context) error{
		"attach disk": func(ctx context.Context) error { return plug.AttachDisk(ctx, disk) },
		"detach disk": func(ctx context.Context) error { return plug.DetachDisk(ctx, disk.ID) },
		"resize disk": func(ctx context.Context) error { return plug.ResizeDisk(ctx, disk.ID, diskSize) },
		"detach nic":  func(ctx context.Context) error { return plug.DetachNIC(ctx, vmm.DeviceID("nic", "stranger")) },
	}
	if nic := b.newNIC("stranger"); nic != nil {
		calls["attach nic"] = func(ctx context.Context) error { return plug.AttachNIC(ctx, *nic) }
	}
	return calls
}

func contains(list []string, id string) bool { return slices.Contains(list, id) }

// wantDisks is that the machine has the disks it began with and these.
func (b *bench) wantDisks(more ...string) {
	b.Helper()
	var want []string
	for _, d := range b.cfg.Disks {
		want = append(want, d.ID)
	}
	b.wantIDs("disks", append(want, more...), b.inspect().Disks)
}

func (b *bench) wantNICs(more ...string) {
	b.Helper()
	var want []string
	for _, n := range b.cfg.NICs {
		want = append(want, n.ID)
	}
	b.wantIDs("network interfaces", append(want, more...), b.inspect().NICs)
}

func (b *bench) wantIDs(what string, want, got []string) {
	b.Helper()
	slices.Sort(want)
	if !slices.IsSorted(got) {
		b.Errorf("%s %v are not sorted", what, got)
	}
	if diff := cmp.Diff(strings.Join(want, "\n"), strings.Join(got, "\n")); diff != "" {
		b.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// wantSize is that the VMM shows the guest that size, if it tells.
func (b *bench) wantSize(id string, size int64) {
	b.Helper()
	if got, ok := b.inspect().DiskBytes[id]; ok && got != size {
		b.Errorf("the VMM shows %s with %d bytes, want %d", id, got, size)
	}
}

// wantSeen is that the guest itself shows it, if it can.
func (b *bench) wantSeen(guest Running, disk vmm.Disk, size int64) {
	b.Helper()
	if b.s.Guest.Plug.Sees == nil {
		return
	}
	start := time.Now()
	b.must("wait for the guest to see "+disk.ID, b.s.Guest.Plug.Sees(b.ctx(), guest, disk, size))
	b.Logf("the guest sees %s with %d bytes after %s", disk.ID, size, time.Since(start).Round(time.Millisecond))
}

// attachDisk attaches and expects what was there and the disk, of that size unless 0.
func (b *bench) attachDisk(disk vmm.Disk, size int64) {
	b.Helper()
	before := b.inspect().Disks
	b.must("attach "+disk.ID, b.plugger()().AttachDisk(b.ctx(), disk))
	o := b.inspect()
	b.wantIDs("disks", append(slices.Clone(before), disk.ID), o.Disks)
	if contains(o.Leaving, disk.ID) {
		b.Errorf("%s was just attached and is said to be leaving", disk.ID)
	}
	if size != 0 {
		b.wantSize(disk.ID, size)
	}
}

// detachDisk asks for a disk and waits until it is gone. A deaf guest that runs is restarted.
func (b *bench) detachDisk(id string) {
	b.Helper()
	b.must("detach "+id, b.plugger()().DetachDisk(b.ctx(), id))
	if b.s.Guest.Plug.Deaf && b.inspect().State == vmm.StateRunning {
		b.must("reset a deaf guest", b.vm.Reset(b.ctx()))
	}
	b.awaitDiskGone(id)
}

// awaitDiskGone repeats the request as the reconciler does: when something happened and every now and then.
func (b *bench) awaitDiskGone(id string) {
	b.Helper()
	b.awaitGone(id, b.plugger()().DetachDisk, func(o vmm.Observation) []string { return o.Disks })
}

func (b *bench) detachNIC(id string) {
	b.Helper()
	b.must("detach "+id, b.plugger()().DetachNIC(b.ctx(), id))
	if b.s.Guest.Plug.Deaf && b.inspect().State == vmm.StateRunning {
		b.must("reset a deaf guest", b.vm.Reset(b.ctx()))
	}
	b.awaitGone(id, b.plugger()().DetachNIC, func(o vmm.Observation) []string { return o.NICs })
}

func (b *bench) awaitGone(id string, detach func(context.Context, string) error, list func(vmm.Observation) []string) {
	b.Helper()
	deadline := time.Now().Add(b.s.Patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		b.must("detach "+id, detach(b.ctx(), id))
		o := b.inspect()
		if !contains(list(o), id) {
			if contains(o.Leaving, id) {
				b.Errorf("%s is gone and is said to be leaving", id)
			}
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s does not go: disks %v, network interfaces %v, leaving %v", id, o.Disks, o.NICs, o.Leaving)
		}
		time.Sleep(pause)
	}
}

// grow makes a medium larger.
func (b *bench) grow(disk vmm.Disk, size int64) {
	b.Helper()
	if b.s.Guest.Plug.Grow != nil {
		b.s.Guest.Plug.Grow(b.T, disk, size)
		return
	}
	b.must("grow the medium", os.Truncate(disk.Path, size))
}

// newNIC is nil if the guest has no part for it.
func (b *bench) newNIC(name string) *vmm.NIC {
	if b.s.Guest.Plug.NIC == nil {
		return nil
	}
	nic := b.s.Guest.Plug.NIC(b.T, b.cfg.Ref, name)
	return &nic
}

func (b *bench) withDisks(more ...vmm.Disk) vmm.Config {
	cfg := b.cfg
	cfg.Disks = append(slices.Clone(cfg.Disks), more...)
	return cfg
}

// vmmDescriptors lists what the VMM has open; nothing where there is no /proc.
func (b *bench) vmmDescriptors() []string {
	var open []string
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", b.proc.Identity().PID))
	for _, l := range links {
		if target, err := os.Readlink(l); err == nil {
			open = append(open, target)
		}
	}
	return open
}

// wantClosed is that the VMM has a file open no more.
func (b *bench) wantClosed(path string) {
	b.Helper()
	if path != "" && contains(b.vmmDescriptors(), path) {
		b.Errorf("the VMM says that the disk is gone, and has %s still open", path)
	}
}

// disksAtRandom counts how many fit, stirs, and wants as many to fit again.
func disksAtRandom(b *bench) {
	plug := b.plugger()
	if b.s.Guest.Plug.Deaf {
		b.start()
	} else {
		b.up()
	}
	const many, rounds = 24, 200
	disks := make([]vmm.Disk, many)
	for i := range disks {
		disks[i] = b.newDisk(fmt.Sprintf("r%d", i), diskSize)
	}
	attach := func(d vmm.Disk) bool {
		err := plug().AttachDisk(b.ctx(), d)
		if machine.IsKind(err, machine.Exhausted) {
			if !strings.ContainsAny(err.Error(), "0123456789") {
				b.Errorf("%v: names no limit", err)
			}
			return false
		}
		b.must("attach", err)
		return true
	}
	fill := func() (n int) {
		for _, d := range disks {
			if attach(d) {
				n++
			}
		}
		for _, d := range disks[:n] {
			b.detachDisk(d.ID)
		}
		b.wantDisks()
		return n
	}
	fit := fill()
	b.Logf("%d of %d disks fit", fit, many)
	in := map[int]bool{}
	random := rand.New(rand.NewPCG(1, 2)) // the same in each run
	for range rounds {
		i := random.IntN(many)
		switch {
		case in[i]:
			b.detachDisk(disks[i].ID)
			delete(in, i)
		case attach(disks[i]):
			in[i] = true
		case len(in) < fit:
			b.Fatalf("only %d of %d slots are free again", len(in), fit)
		}
	}
	var left []string
	for i := range in {
		left = append(left, disks[i].ID)
	}
	b.wantDisks(left...)
	for _, id := range left {
		b.detachDisk(id)
	}
	if again := fill(); again != fit {
		b.Errorf("%d disks fit after %d changes, %d before", again, rounds, fit)
	}
	b.wantSameProcess()
}
