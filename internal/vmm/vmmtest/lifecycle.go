// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmmtest

import (
	"errors"
	"os"
	"sync"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

func lifecycleCases() []suiteCase {
	return []suiteCase{
		{"preparing twice starts nothing and gives the same command", preparedTwice},
		{"what the driver cannot do is refused by name", refusals},
		{"a fresh VMM runs no guest", freshVMM},
		{"each step may be repeated", repeatedSteps},
		{"each step may be taken by many at once", concurrentSteps},
		{"steps out of order are refused and change nothing", outOfOrder},
		{"a guest that was powered off boots again in the same process", powerOffAndBoot},
		{"a guest that runs is reset in the same process", resetByDriver},
		{"shutting down ends the process in every state", shutdownEverywhere},
		{"cleaning up removes the runtime files and may be repeated", cleanup},
	}
}

func preparedTwice(b *bench) {
	first, err := b.driver.Prepare(b.ctx(), b.cfg)
	b.must("prepare", err)
	second, err := b.driver.Prepare(b.ctx(), b.cfg)
	b.must("prepare again", err)
	if diff := cmp.Diff(first, second); diff != "" {
		b.Errorf("the commands differ (-first +second):\n%s", diff)
	}
	if first.Marker != "" || first.Output != "" {
		b.Error("marker or output are filled in, which is the caller's part")
	}
	first.Marker = b.marker
	b.must("validate command", first.Validate())
	if found, err := b.s.Supervisor.Find(b.ctx(), b.marker); err != nil || len(found) > 0 {
		b.Errorf("processes %v, error %v: preparing must start nothing", found, err)
	}
}

func refusals(b *bench) {
	can := b.driver.Capabilities()
	b.must("validate the sound configuration", b.driver.Validate(b.cfg))
	refused := func(what string, change func(*vmm.Config), kinds ...machine.Kind) {
		b.Helper()
		cfg := b.cfg
		cfg.Disks = append([]vmm.Disk{}, cfg.Disks...)
		cfg.NICs = append([]vmm.NIC{}, cfg.NICs...)
		change(&cfg)
		b.wantKind(what, b.driver.Validate(cfg), kinds...)
		_, err := b.driver.Prepare(b.ctx(), cfg)
		b.wantKind("prepare with "+what, err, kinds...)
	}
	for kind, possible := range map[vmm.NICKind]bool{
		vmm.NICIsolated: can.IsolatedNIC, vmm.NICUser: can.UserNetwork, vmm.NICTap: can.TapNIC,
	} {
		if !possible {
			refused("a network interface of kind "+string(kind), func(c *vmm.Config) {
				c.NICs = []vmm.NIC{{ID: "nic-x", MAC: "02:00:00:00:00:01", Kind: kind, Tap: "tap0"}}
			}, machine.Unimplemented)
		}
	}
	claimed := map[vmm.IgnitionTransport]bool{}
	for _, t := range can.Ignition {
		claimed[t] = true
	}
	for _, t := range []vmm.IgnitionTransport{vmm.IgnitionFWCfg, vmm.IgnitionSMBIOS, vmm.IgnitionDisk} {
		if !claimed[t] {
			refused("Ignition by "+string(t), func(c *vmm.Config) {
				c.Ignition = &vmm.Ignition{Transport: t, Data: []byte("{}")}
			}, machine.Unimplemented)
		}
	}
	if !can.GuestAgent {
		refused("a guest agent", func(c *vmm.Config) { c.GuestAgent = true }, machine.Unimplemented)
	}
	refused("no CPU", func(c *vmm.Config) { c.CPUs = 0 }, machine.Invalid)
	refused("no memory", func(c *vmm.Config) { c.MemoryBytes = 0 }, machine.Invalid)
	refused("two disks of one id", func(c *vmm.Config) {
		d := vmm.Disk{ID: "disk-x", Path: "/dev/null", Serial: "x"}
		c.Disks = append(c.Disks, d, d)
	}, machine.Invalid)
	refused("a long serial", func(c *vmm.Config) {
		c.Disks = append(c.Disks, vmm.Disk{ID: "disk-x", Path: "/dev/null", Serial: "123456789012345678901"})
	}, machine.Invalid)
}

func freshVMM(b *bench) {
	b.launch()
	b.connect()
	o := b.wantState(vmm.StateEmpty, vmm.StateIdle)
	if o.Version == "" {
		b.Error("the VMM tells no version")
	}
	if o.State == vmm.StateIdle && o.MachineID != b.cfg.MachineID {
		b.Errorf("the VM is of machine %q, want %q", o.MachineID, b.cfg.MachineID)
	}
	b.must("power off what does not run", b.vm.PowerOff(b.ctx()))
	b.wantSameProcess()
}

func (b *bench) wantDevices() {
	b.Helper()
	o := b.inspect()
	if o.MachineID != b.cfg.MachineID {
		b.Errorf("the VM is of machine %q, want %q", o.MachineID, b.cfg.MachineID)
	}
	want := map[string]bool{}
	for _, d := range b.cfg.Disks {
		want[d.ID] = true
	}
	got := map[string]bool{}
	for _, d := range o.Disks {
		got[d] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		b.Errorf("disks (-want +got):\n%s", diff)
	}
	want, got = map[string]bool{}, map[string]bool{}
	for _, n := range b.cfg.NICs {
		want[n.ID] = true
	}
	for _, n := range o.NICs {
		got[n] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		b.Errorf("network interfaces (-want +got):\n%s", diff)
	}
}

func repeatedSteps(b *bench) {
	b.start()
	b.must("create again", b.vm.Create(b.ctx(), b.cfg))
	b.wantState(vmm.StateIdle)
	b.wantDevices()
	b.must("power off", b.vm.PowerOff(b.ctx()))
	b.wantState(vmm.StateIdle)
	b.must("boot", b.vm.Boot(b.ctx()))
	b.awaitEvent(vmm.EventBooted)
	b.must("boot again", b.vm.Boot(b.ctx()))
	b.must("create while it runs", b.vm.Create(b.ctx(), b.cfg))
	b.wantState(vmm.StateRunning)
	b.wantDevices()
	b.must("power off", b.vm.PowerOff(b.ctx()))
	b.must("power off again", b.vm.PowerOff(b.ctx()))
	b.wantState(vmm.StateIdle)
	b.must("create after it ran", b.vm.Create(b.ctx(), b.cfg))
	b.wantState(vmm.StateIdle)
	b.wantDevices()
	b.wantSameProcess()
}

// atOnce runs f several times in parallel.
func (b *bench) atOnce(doing string, f func() error) {
	b.Helper()
	errs := make([]error, 6)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = f() })
	}
	wg.Wait()
	b.must(doing, errors.Join(errs...))
}

func concurrentSteps(b *bench) {
	b.launch()
	b.connect()
	ctx := b.ctx()
	inspect := func() error {
		_, err := b.vm.Inspect(ctx)
		return err
	}
	b.atOnce("create", func() error { return b.vm.Create(ctx, b.cfg) })
	b.atOnce("boot and inspect", func() error { return errors.Join(b.vm.Boot(ctx), inspect()) })
	b.wantState(vmm.StateRunning)
	b.atOnce("power off and inspect", func() error { return errors.Join(inspect(), b.vm.PowerOff(ctx)) })
	b.wantState(vmm.StateIdle)
	b.wantSameProcess()
}

func outOfOrder(b *bench) {
	b.launch()
	b.connect()
	if b.inspect().State == vmm.StateEmpty {
		b.wantKind("boot before create", b.vm.Boot(b.ctx()), machine.FailedPrecondition)
	}
	b.must("create", b.vm.Create(b.ctx(), b.cfg))
	b.wantKind("power button of no guest", b.vm.PowerButton(b.ctx()), machine.FailedPrecondition)
	b.wantKind("reset of no guest", b.vm.Reset(b.ctx()), machine.FailedPrecondition)
	b.wantState(vmm.StateIdle)
	b.wantSameProcess()
}

func powerOffAndBoot(b *bench) {
	b.up()
	b.must("power off", b.vm.PowerOff(b.ctx()))
	b.awaitEvent(vmm.EventGuestStopped)
	b.wantState(vmm.StateIdle)
	b.must("boot again", b.vm.Boot(b.ctx()))
	b.awaitEvent(vmm.EventBooted)
	b.awaitGuest()
	b.wantState(vmm.StateRunning)
	b.wantDevices()
	b.wantSameProcess()
}

func resetByDriver(b *bench) {
	b.up()
	b.must("reset", b.vm.Reset(b.ctx()))
	b.awaitEvent(vmm.EventGuestReset)
	b.awaitGuest()
	b.wantState(vmm.StateRunning)
	b.wantDevices()
	b.wantSameProcess()
}

func shutdownEverywhere(b *bench) {
	for _, state := range []struct {
		name  string
		reach func()
	}{
		{"fresh", func() { b.launch(); b.connect() }},
		{"created", b.start},
		{"running", func() { b.start(); b.must("boot", b.vm.Boot(b.ctx())) }},
		{"powered off", func() {
			b.start()
			b.must("boot", b.vm.Boot(b.ctx()))
			b.must("power off", b.vm.PowerOff(b.ctx()))
		}},
	} {
		state.reach()
		b.must("shut down when "+state.name, b.vm.Shutdown(b.ctx()))
		b.awaitEnd()
		b.disconnect()
	}
}

func cleanup(b *bench) {
	b.must("clean up what was never prepared", b.driver.Cleanup(b.ctx(), b.cfg.Ref))
	b.start()
	b.must("boot", b.vm.Boot(b.ctx()))
	b.must("shut down", b.vm.Shutdown(b.ctx()))
	b.awaitEnd()
	b.disconnect()
	for range 2 {
		b.must("clean up", b.driver.Cleanup(b.ctx(), b.cfg.Ref))
	}
	entries, err := os.ReadDir(b.cfg.RuntimeDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.Fatal(err)
	}
	for _, e := range entries {
		b.Errorf("left in the runtime directory: %s", e.Name())
	}
	for _, d := range b.cfg.Disks {
		if _, err := os.Stat(d.Path); err != nil {
			b.Errorf("a disk is gone: %v", err)
		}
	}
}
