// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// notApplied stands in a record for the definition of an interface that was never ready.
const notApplied = "-"

func (r *Reconciler) nicRequest(m *machine.Machine, nic machine.NetworkInterface) network.Request {
	req := network.Request{
		MachineID: m.ID, Interface: network.Interface(nic), MAC: machine.MAC(m.ID, nic.Name),
		Queues: int(max(m.Desired.Resources.CPUs, 1)),
	}
	if m.Desired.GuestConfig != nil {
		req.Hostname = m.Desired.GuestConfig.Hostname
	}
	return req
}

// prepareNIC has the network plugin make an interface, or adapt one that the guest has. An interface that is not ready
// is waited for by an event of the plugin.
func (r *Reconciler) prepareNIC(ctx context.Context, m *machine.Machine, name string) error {
	n, ok := m.Desired.NIC(name)
	if !ok {
		return nil
	}
	before := m.Record.NICs[name]
	plugin := r.o.Network
	if before.Given {
		if plugin, ok = r.o.Networks[before.Plugin]; !ok {
			return machine.Errorf(machine.Unavailable, "network plugin %q is not available now", before.Plugin)
		}
	} else if before.Plugin != "" && before.Plugin != plugin.Name() { // the configuration was changed: the record must not lose what there is
		if err := r.removeNIC(ctx, m, before.Plugin, name); err != nil {
			return err
		}
		before = machine.NICRecord{Handle: before.Handle, MAC: before.MAC} // an empty handle would be told
	}
	req := r.nicRequest(m, n)
	w := wire(plugin, req)
	switch {
	case before.Plugin == "":
		before.Plugin, before.Identity, before.Definition = plugin.Name(), w.Identity, notApplied
		if err := r.recordNIC(ctx, m.ID, name, before); err != nil {
			return err
		}
	case before.Definition != "" && before.Identity != w.Identity:
		return machine.Errorf(machine.FailedPrecondition, "an earlier network interface %s is not gone yet", name)
	}
	result, err := plugin.Apply(ctx, req)
	if err != nil {
		return pluginFailed(err, plugin.Name())
	}
	if result.State != network.StateReady {
		return &pendingError{
			reason: cmp.Or(result.Reason, "NetworkInterfaceNotReady"), message: result.Message, wait: r.o.Resync,
		}
	}
	r.withDevices(m.ID, func(d *devices) { d.applied[name] = result })
	r.remember(m.ID, Device{NIC: true, Name: name}, func(known *DeviceMemory) { known.Applied = true })
	after := before
	after.Identity, after.Definition, after.Handle, after.MAC = w.Identity, w.Definition, result.Handle, result.MAC
	if now := wired(result); before.Given && before.Wired == "" {
		after.Wired = now
	} else if before.Given && before.Wired != now {
		after.Replug = true
		r.o.Events.Event(m, Warning, "NetworkInterfaceReplaced", "AttachNetworkInterface",
			"what the guest has for network interface "+name+" leads to nothing any more; it is taken out and put in again")
	}
	if after == before {
		return nil
	}
	return r.recordNIC(ctx, m.ID, name, after)
}

func (r *Reconciler) recordNIC(ctx context.Context, id, name string, n machine.NICRecord) error {
	return r.record(ctx, id, func(rec *machine.Record) {
		if rec.NICs == nil {
			rec.NICs = map[string]machine.NICRecord{}
		}
		rec.NICs[name] = n
	})
}

// attachNIC plugs a prepared interface into the running guest. That the VMM may have it is durable before.
func (r *Reconciler) attachNIC(ctx context.Context, m *machine.Machine, name string) error {
	rec, known := m.Record.NICs[name]
	if _, wanted := m.Desired.NIC(name); !wanted || !known {
		return nil
	}
	nic, err := r.vmNIC(m.ID, name)
	if err != nil {
		return err
	}
	_, plugger, err := r.plugger(ctx, m.ID)
	if err != nil {
		return err
	}
	rec.Given, rec.AskedAt, rec.Replug = true, time.Time{}, false
	r.withDevices(m.ID, func(d *devices) { rec.Wired = wired(d.applied[name]) })
	if err := r.recordNIC(ctx, m.ID, name, rec); err != nil {
		return err
	}
	if err := plugger.AttachNIC(ctx, nic); err != nil {
		if refusedOutright(err) {
			rec.Given = false
			err = errors.Join(err, r.recordNIC(ctx, m.ID, name, rec))
		}
		return r.pluggerError(err)
	}
	r.o.Events.Event(m, Normal, "NetworkInterfaceAttached", "AttachNetworkInterface", "network interface "+name+" was attached")
	return nil
}

func (r *Reconciler) detachNIC(ctx context.Context, m *machine.Machine, name string) error {
	return r.letGo(ctx, m, Device{NIC: true, Name: name}, m.Record.NICs[name].AskedAt, func(asked time.Time, given bool) error {
		return r.record(ctx, m.ID, func(rec *machine.Record) {
			if n, ok := rec.NICs[name]; ok {
				n.AskedAt, n.Given, n.Attached, n.Replug = asked, given, n.Attached && given, n.Replug && given
				rec.NICs[name] = n
			}
		})
	})
}

// releaseNIC removes an interface. Of one that is wanted again the handle stays, since a client would clear its own.
func (r *Reconciler) releaseNIC(ctx context.Context, m *machine.Machine, name string) error {
	before, known := m.Record.NICs[name]
	if !known {
		return nil
	}
	if mayHave(m, before.Given) {
		return machine.Errorf(machine.FailedPrecondition, "the VMM may still have network interface %s", name)
	}
	if before.Plugin != "" {
		if err := r.removeNIC(ctx, m, before.Plugin, name); err != nil {
			return err
		}
	}
	return r.record(ctx, m.ID, func(rec *machine.Record) {
		if _, wanted := m.Desired.NIC(name); wanted && !m.Desired.Deleting() {
			rec.NICs[name] = machine.NICRecord{Handle: before.Handle, MAC: before.MAC}
			return
		}
		delete(rec.NICs, name)
	})
}

// removeNIC has the plugin that made an interface remove it.
func (r *Reconciler) removeNIC(ctx context.Context, m *machine.Machine, plugin, name string) error {
	p, ok := r.o.Networks[plugin]
	if !ok {
		return machine.Errorf(machine.Unavailable, "network plugin %q is not available now", plugin)
	}
	r.withDevices(m.ID, func(d *devices) { delete(d.applied, name) })
	r.remember(m.ID, Device{NIC: true, Name: name}, func(known *DeviceMemory) { known.Applied = false })
	left, err := p.Delete(ctx, network.Ref{MachineID: m.ID, Name: name})
	if err != nil {
		return pluginFailed(err, plugin)
	}
	if left.State != network.StateAbsent {
		return &pendingError{
			reason: cmp.Or(left.Reason, "NetworkInterfaceLeaving"), message: left.Message, wait: r.o.Resync,
		}
	}
	return nil
}
