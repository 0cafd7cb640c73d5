// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"cmp"
	"context"
	"maps"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// vmConfig is the whole virtual machine as wanted, from the desired state and what was prepared for it. Preparing
// comes right before it in every plan, and what was prepared is in memory alone, since it holds secrets.
func (r *Reconciler) vmConfig(ctx context.Context, m *machine.Machine) (vmm.Config, error) {
	d := &m.Desired
	cfg := vmm.Config{
		Ref: r.o.ref(m.ID), CPUs: d.Resources.CPUs, MemoryBytes: d.Resources.MemoryBytes,
		GuestAgent: r.o.GuestShutdown != nil && r.o.Driver.Capabilities().GuestAgent,
	}
	if d.GuestConfig != nil {
		cfg.Hostname = d.GuestConfig.Hostname
	}
	img, err := r.image(ctx, m)
	if err != nil {
		return cfg, err
	}
	if img != nil && img.Kernel != nil {
		cfg.Boot = vmm.Boot{Kernel: img.Kernel.Path, CommandLine: img.CommandLine}
		if img.Initramfs != nil {
			cfg.Boot.Initramfs = img.Initramfs.Path
		}
	}
	for _, v := range bootFirst(d) {
		disk, err := r.vmDisk(m.ID, v.Name)
		if err != nil {
			return cfg, err
		}
		cfg.Disks = append(cfg.Disks, disk)
	}
	for _, n := range d.NICs {
		nic, err := r.vmNIC(m.ID, n.Name)
		if err != nil {
			return cfg, err
		}
		cfg.NICs = append(cfg.NICs, nic)
	}
	if len(d.Ignition) > 0 {
		transport, err := vmm.ChooseIgnition(r.o.Driver.Capabilities(), r.o.Ignition, len(d.Ignition))
		if err != nil {
			return cfg, err
		}
		cfg.Ignition = &vmm.Ignition{Transport: transport, Data: d.Ignition}
	}
	return cfg, nil
}

// bootFirst is the volumes in order, the boot volume moved to the front.
func bootFirst(d *machine.Desired) []machine.Volume {
	boot := bootVolume(d)
	out := make([]machine.Volume, 0, len(d.Volumes))
	for _, first := range []bool{true, false} {
		for _, v := range d.Volumes {
			if (v.Name == boot) == first {
				out = append(out, v)
			}
		}
	}
	return out
}

// bootVolume names the volume that a guest boots from: the local disk that begins as an image, else the one with the
// first device name. The order of the list says little: a volume that is taken out and put in again, as a client does
// when a key is changed, comes last in it.
func bootVolume(d *machine.Desired) string {
	if _, name, ok := d.BootImage(); ok {
		return name
	}
	var boot machine.Volume
	for i, v := range d.Volumes {
		sooner := cmp.Or(cmp.Compare(len(v.Device), len(boot.Device)), cmp.Compare(v.Device, boot.Device)) < 0
		if i == 0 || sooner && v.Device != "" {
			boot = v
		}
	}
	return boot.Name
}

// vmDisk is a prepared volume as a VMM takes it.
func (r *Reconciler) vmDisk(id, name string) (vmm.Disk, error) {
	var p volume.Prepared
	ok := false
	r.withDevices(id, func(d *devices) { p, ok = d.prepared[name] })
	if !ok {
		return vmm.Disk{}, machine.Errorf(machine.FailedPrecondition, "volume %s is not prepared", name)
	}
	disk := vmm.Disk{
		ID: Device{Name: name}.id(), Path: p.Path, VhostUser: p.VhostUser, Format: vmm.DiskFormat(p.Format), Serial: p.Serial,
		ReadOnly: p.ReadOnly, Cache: r.o.CachePolicy, Limits: vmm.IOLimits(p.Limits),
	}
	if p.RBD != nil {
		rbd := vmm.RBD(*p.RBD)
		disk.RBD = &rbd
	}
	return disk, nil
}

// vmNIC is a prepared network interface as a VMM takes it.
func (r *Reconciler) vmNIC(id, name string) (vmm.NIC, error) {
	var result network.Result
	ok := false
	r.withDevices(id, func(d *devices) { result, ok = d.applied[name] })
	if !ok {
		return vmm.NIC{}, machine.Errorf(machine.FailedPrecondition, "network interface %s is not prepared", name)
	}
	nic := vmm.NIC{ID: Device{NIC: true, Name: name}.id(), MAC: result.MAC}
	switch result.Backend {
	case network.BackendIsolated:
		nic.Kind = vmm.NICIsolated
	case network.BackendTap:
		nic.Kind, nic.Tap, nic.Queues, nic.MTU = vmm.NICTap, result.Tap, result.Queues, result.MTU
	case network.BackendPCI:
		nic.Kind, nic.PCI = vmm.NICPCI, result.PCI
	case network.BackendUser:
		nic.Kind = vmm.NICUser
		for _, f := range result.Forwards {
			nic.Forwards = append(nic.Forwards, vmm.PortForward(f))
		}
	default:
		return nic, machine.Errorf(machine.Unimplemented, "network interface %s: unknown back end %q", name, result.Backend)
	}
	return nic, nil
}

// wired names what a VMM is given for a network interface: a tap or a PCI function, of one object of the network. The one
// does not lead anywhere any more when the network has made another.
func wired(result network.Result) string {
	return strings.Join([]string{string(result.Backend), result.Tap + result.PCI, result.Handle}, " ")
}

// giveAll notes that a VMM is about to be given all that is wanted: from then on it may have it.
func (r *Reconciler) giveAll(rec *machine.Record, m *machine.Machine) {
	d := &m.Desired
	var applied map[string]network.Result
	r.withDevices(m.ID, func(known *devices) { applied = maps.Clone(known.applied) })
	for i, v := range bootFirst(d) {
		if vol, ok := rec.Volumes[v.Name]; ok {
			vol.Given, vol.Boot, vol.GuestBytes, vol.AskedAt = true, i == 0, vol.SizeBytes, time.Time{}
			rec.Volumes[v.Name] = vol
		}
	}
	for _, n := range d.NICs {
		if nic, ok := rec.NICs[n.Name]; ok {
			nic.Given, nic.AskedAt, nic.Wired, nic.Replug = true, time.Time{}, "", false
			if result, known := applied[n.Name]; known {
				nic.Wired = wired(result)
			}
			rec.NICs[n.Name] = nic
		}
	}
}

// takeAll notes that no VMM has anything any more.
func takeAll(rec *machine.Record) {
	for name, vol := range rec.Volumes {
		vol.Attached, vol.Given, vol.Boot, vol.Replug, vol.GuestBytes, vol.AskedAt = false, false, false, false, 0, time.Time{}
		rec.Volumes[name] = vol
	}
	for name, nic := range rec.NICs {
		nic.Attached, nic.Given, nic.AskedAt, nic.Wired, nic.Replug = false, false, time.Time{}, "", false
		rec.NICs[name] = nic
	}
	rec.ClearCondition(ConditionVolumes)
	rec.ClearCondition(ConditionNICs)
}
