// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// Create checks that the machine that QEMU was started with is the wanted one.
// One that has not run yet gets the devices that are missing (some always are:
// see Driver.devices) and loses those that are not wanted any more; a difference
// in size or a machine that runs needs a new process.
func (v *virtualMachine) Create(ctx context.Context, cfg vmm.Config) error {
	if cfg.MachineID != v.ref.MachineID {
		return fmt.Errorf("connected to %s, asked to create %s: %w", v.ref.MachineID, cfg.MachineID, vmm.ErrIdentity)
	}
	p, release, err := v.plugging(ctx)
	if err != nil {
		return err
	}
	defer release()
	if p.status != "prelaunch" { // it has run: it is defined, and stays what it is
		return nil
	}
	if err := v.checkSize(ctx, cfg); err != nil {
		return err
	}
	if err := p.removeOthers(ctx, cfg); err != nil {
		return fmt.Errorf("remove devices of an earlier definition: %w", err)
	}
	added, err := p.addMissing(ctx, cfg)
	if err != nil {
		return fmt.Errorf("add devices that are missing: %w", err)
	}
	if added {
		return p.settle(ctx)
	}
	return nil
}

// checkSize compares what only a new process can change.
func (v *virtualMachine) checkSize(ctx context.Context, cfg vmm.Config) error {
	var memory struct {
		Base int64 `json:"base-memory"`
	}
	if err := v.ask(ctx, "query-memory-size-summary", nil, &memory); err != nil {
		return fmt.Errorf("ask for the memory: %w", err)
	}
	var cpus []struct{}
	if err := v.ask(ctx, "query-cpus-fast", nil, &cpus); err != nil {
		return fmt.Errorf("ask for the CPUs: %w", err)
	}
	if memory.Base != cfg.MemoryBytes || int64(len(cpus)) != cfg.CPUs {
		return machine.Errorf(machine.FailedPrecondition,
			"QEMU was started with %d CPUs and %d bytes of memory, %d and %d are wanted: it must be started anew",
			len(cpus), memory.Base, cfg.CPUs, cfg.MemoryBytes)
	}
	return nil
}

// removeOthers removes what is not in cfg, also the host's side of devices that went before, and what is on its way
// out, whether it is in cfg or not.
func (p *plugging) removeOthers(ctx context.Context, cfg vmm.Config) error {
	leaving := p.host.leaving()
	stays := func(id string) bool { return slices.Contains(deviceIDs(cfg), id) && !slices.Contains(leaving, id) }
	var others []string
	for _, id := range slices.Concat(p.have.disks, p.have.nics) {
		if stays(id) {
			continue
		}
		if err := p.requestUnplug(ctx, id); err != nil {
			return err
		}
		others = append(others, id)
	}
	if len(others) > 0 {
		if err := p.unplugAtRest(ctx, others); err != nil {
			return err
		}
	}
	if err := p.look(ctx); err != nil {
		return err
	}
	for _, id := range p.host.disks() {
		if !p.have.has(id) {
			if err := p.dropDisk(ctx, id); err != nil {
				return err
			}
		}
	}
	for _, id := range slices.Concat(p.host.nics(), others) {
		if !p.have.has(id) {
			if err := p.dropNIC(ctx, id); err != nil {
				return err
			}
		}
	}
	return p.look(ctx)
}

// unplugAtRest completes requests while no guest runs: a reset does it.
func (p *plugging) unplugAtRest(ctx context.Context, ids []string) error {
	if err := p.resetToStart(ctx); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, backendPatience)
	defer cancel()
	err := p.until(wait, func() (bool, error) {
		now, err := p.peripherals(wait)
		return !slices.ContainsFunc(ids, now.has), err
	})
	if err != nil && ctx.Err() == nil && errors.Is(wait.Err(), context.DeadlineExceeded) {
		return machine.Errorf(machine.Unimplemented,
			"devices of this kind of machine go only while a guest runs: it needs a new process")
	}
	return err
}

// addMissing adds what cfg has and the machine has not.
func (p *plugging) addMissing(ctx context.Context, cfg vmm.Config) (added bool, err error) {
	for i, disk := range cfg.Disks {
		if p.have.has(disk.ID) {
			continue
		}
		if err := validateDisk(disk); err != nil {
			return added, err
		}
		if err := p.addDisk(ctx, disk, i == 0 && cfg.Boot.Kernel == ""); err != nil {
			return added, fmt.Errorf("disk %s: %w", disk.ID, err)
		}
		added = true
	}
	for _, nic := range cfg.NICs {
		if p.have.has(nic.ID) {
			continue
		}
		if err := validateNIC(nic); err != nil {
			return added, err
		}
		if err := p.addNIC(ctx, nic); err != nil {
			return added, fmt.Errorf("network interface %s: %w", nic.ID, err)
		}
		added = true
	}
	return added, nil
}
