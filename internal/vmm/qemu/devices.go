// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/qemu/qmp"
)

// peripheralPath is where QEMU keeps all devices that have an id.
const peripheralPath = "/machine/peripheral"

// peripherals is what is plugged into a machine.
type peripherals struct {
	disks, nics, ports []string
}

func (p peripherals) has(id string) bool {
	return slices.Contains(p.disks, id) || slices.Contains(p.nics, id)
}

func (v *virtualMachine) peripherals(ctx context.Context) (peripherals, error) {
	var list []struct {
		Name string `json:"name"`
		Type string `json:"type"`
	}
	if err := v.ask(ctx, "qom-list", map[string]string{"path": peripheralPath}, &list); err != nil {
		return peripherals{}, fmt.Errorf("list devices: %w", err)
	}
	var p peripherals
	for _, item := range list {
		switch strings.TrimSuffix(strings.TrimPrefix(item.Type, "child<"), ">") {
		case "virtio-blk-pci":
			p.disks = append(p.disks, item.Name)
		case "virtio-net-pci":
			p.nics = append(p.nics, item.Name)
		case "pcie-root-port":
			p.ports = append(p.ports, item.Name)
		}
	}
	p.disks, p.nics, p.ports = sorted(p.disks), sorted(p.nics), sorted(p.ports)
	return p, nil
}

// Create checks that the machine that QEMU was started with is the wanted one.
// One that has not run yet gets the devices that are missing and loses those
// that are not wanted any more; a difference in size or a machine that runs
// needs a new process.
func (v *virtualMachine) Create(ctx context.Context, cfg vmm.Config) error {
	if cfg.MachineID != v.ref.MachineID {
		return fmt.Errorf("connected to %s, asked to create %s: %w", v.ref.MachineID, cfg.MachineID, vmm.ErrIdentity)
	}
	release, err := v.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	status, err := v.status(ctx)
	if err != nil {
		return err
	}
	if status != "prelaunch" { // it has run: it is defined, and stays what it is
		return nil
	}
	if err := v.checkSize(ctx, cfg); err != nil {
		return err
	}
	have, err := v.peripherals(ctx)
	if err != nil {
		return err
	}
	if err := v.unplugOthers(ctx, have, cfg); err != nil {
		return fmt.Errorf("remove devices of an earlier definition: %w", err)
	}
	if err := v.plugMissing(ctx, have, cfg); err != nil {
		return fmt.Errorf("add devices that are missing: %w", err)
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

// unplugOthers removes what is not in cfg. Without a running guest an unplug
// only completes at a reset.
func (v *virtualMachine) unplugOthers(ctx context.Context, have peripherals, cfg vmm.Config) error {
	wanted := map[string]bool{}
	for _, d := range cfg.Disks {
		wanted[d.ID] = true
	}
	for _, n := range cfg.NICs {
		wanted[n.ID] = true
	}
	var disks, nics []string
	for _, id := range have.disks {
		if !wanted[id] {
			disks = append(disks, id)
		}
	}
	for _, id := range have.nics {
		if !wanted[id] {
			nics = append(nics, id)
		}
	}
	others := slices.Concat(disks, nics)
	if len(others) == 0 {
		return v.dropBackends(ctx, nil)
	}
	for _, id := range others {
		if err := v.ask(ctx, "device_del", map[string]string{"id": id}, nil); err != nil && !qmp.HasClass(err, "DeviceNotFound") {
			return err
		}
	}
	if err := v.resetToStart(ctx); err != nil {
		return err
	}
	err := v.until(ctx, func() (bool, error) {
		now, err := v.peripherals(ctx)
		return !slices.ContainsFunc(others, now.has), err
	})
	if err != nil {
		return err
	}
	return v.dropBackends(ctx, nics)
}

// backendPatience is how long QEMU may keep the host's side of a device that is
// gone; it lets go some milliseconds after it says that the device is deleted.
const backendPatience = 5 * time.Second

// dropBackends removes the host's side of network interfaces that are gone and
// of all disks that have no device, also those that an earlier try left.
func (v *virtualMachine) dropBackends(ctx context.Context, nics []string) error {
	ctx, cancel := context.WithTimeout(ctx, backendPatience)
	defer cancel()
	have, err := v.peripherals(ctx)
	if err != nil {
		return err
	}
	nodes, err := v.diskNodes(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if have.has(strings.TrimPrefix(node, nodePrefix)) {
			continue
		}
		if err := v.insist(ctx, "blockdev-del", map[string]string{"node-name": node}); err != nil {
			return err
		}
	}
	for _, id := range nics {
		// An isolated interface has none.
		err := v.insist(ctx, "netdev_del", map[string]string{"id": netdevPrefix + id})
		if err != nil && !qmp.HasClass(err, "DeviceNotFound") {
			return err
		}
	}
	return nil
}

// insist repeats a command while QEMU refuses it because something is still in
// use, for which it has no class of its own.
func (v *virtualMachine) insist(ctx context.Context, command string, args any) error {
	var refusal error
	err := v.until(ctx, func() (bool, error) {
		err := v.ask(ctx, command, args, nil)
		if qmp.HasClass(err, "GenericError") {
			refusal = err
			return false, nil
		}
		return true, err
	})
	if err != nil && refusal != nil && ctx.Err() != nil {
		return refusal
	}
	return err
}

// diskNodes lists the block nodes that were made for disks.
func (v *virtualMachine) diskNodes(ctx context.Context) ([]string, error) {
	var list []struct {
		Name string `json:"node-name"`
	}
	if err := v.ask(ctx, "query-named-block-nodes", map[string]bool{"flat": true}, &list); err != nil {
		return nil, fmt.Errorf("list block nodes: %w", err)
	}
	var names []string
	for _, node := range list {
		if strings.HasPrefix(node.Name, nodePrefix) {
			names = append(names, node.Name)
		}
	}
	return names, nil
}

// plugMissing adds what cfg has and the machine has not.
func (v *virtualMachine) plugMissing(ctx context.Context, have peripherals, cfg vmm.Config) error {
	for i, disk := range cfg.Disks {
		if slices.Contains(have.disks, disk.ID) {
			continue
		}
		port, err := v.freePort(ctx)
		if err != nil {
			return err
		}
		if err := v.plugDisk(ctx, disk, port, i == 0 && cfg.Boot.Kernel == ""); err != nil {
			return fmt.Errorf("disk %s: %w", disk.ID, err)
		}
	}
	for _, nic := range cfg.NICs {
		if slices.Contains(have.nics, nic.ID) {
			continue
		}
		port, err := v.freePort(ctx)
		if err != nil {
			return err
		}
		if err := v.plugNIC(ctx, nic, port); err != nil {
			return fmt.Errorf("network interface %s: %w", nic.ID, err)
		}
	}
	return nil
}

// freePort asks which root port has nothing plugged in.
func (v *virtualMachine) freePort(ctx context.Context) (string, error) {
	have, err := v.peripherals(ctx)
	if err != nil {
		return "", err
	}
	used := map[string]bool{}
	for _, id := range slices.Concat(have.disks, have.nics) {
		var bus string
		args := map[string]string{"path": peripheralPath + "/" + id, "property": "parent_bus"}
		if err := v.ask(ctx, "qom-get", args, &bus); err != nil {
			return "", fmt.Errorf("ask for the port of %s: %w", id, err)
		}
		used[path.Base(bus)] = true
	}
	// By number, so that the guest's order follows the order of plugging.
	for i := range have.ports {
		if name := portName(i); !used[name] {
			return name, nil
		}
	}
	return "", machine.Errorf(machine.Exhausted, "all %d hot-plug ports of the machine are in use", len(have.ports))
}

func (v *virtualMachine) plugDisk(ctx context.Context, disk vmm.Disk, port string, boot bool) error {
	st, err := os.Stat(disk.Path)
	if err != nil {
		return machine.Wrap(machine.FailedPrecondition, err, "look at the disk")
	}
	blockDevice := st.Mode()&os.ModeDevice != 0 && st.Mode()&os.ModeCharDevice == 0
	if err := v.ask(ctx, "blockdev-add", diskNode(disk, blockDevice), nil); err != nil {
		return err
	}
	dev := diskDevice(disk, port)
	if boot {
		dev = append(dev, option{"bootindex", 0})
	}
	if err := v.ask(ctx, "device_add", dev.arguments(), nil); err != nil {
		_ = v.client.Execute(ctx, "blockdev-del", map[string]string{"node-name": nodePrefix + disk.ID}, nil)
		return err
	}
	return nil
}

func (v *virtualMachine) plugNIC(ctx context.Context, nic vmm.NIC, port string) error {
	left := map[string]string{"id": netdevPrefix + nic.ID}
	if backend := nicBackend(nic); backend != nil {
		_ = v.client.Execute(ctx, "netdev_del", left, nil)
		if err := v.ask(ctx, "netdev_add", backend.arguments(), nil); err != nil {
			return err
		}
	}
	if err := v.ask(ctx, "device_add", nicDevice(nic, port).arguments(), nil); err != nil {
		_ = v.client.Execute(ctx, "netdev_del", left, nil)
		return err
	}
	return nil
}
