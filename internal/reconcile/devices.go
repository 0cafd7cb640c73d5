// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// Conditions that tell of a machine's devices. Each is there while the guest runs, or while something is wrong.
const (
	ConditionVolumes = "VolumesReady"
	ConditionNICs    = "NetworkInterfacesReady"
)

// devices is what this life of the daemon knows of one machine's devices; guarded by the reconciler's lock.
type devices struct {
	generation int64
	known      map[Device]DeviceMemory
	prepared   map[string]volume.Prepared // by volume; they hold secrets, so that they are kept nowhere else
	from       map[string]machine.Volume  // what they were prepared as
	applied    map[string]network.Result  // by network interface
}

// withDevices calls fn with what is known of a machine's devices.
func (r *Reconciler) withDevices(id string, fn func(*devices)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.devices[id]
	if d == nil {
		d = &devices{known: map[Device]DeviceMemory{}, prepared: map[string]volume.Prepared{}, from: map[string]machine.Volume{}, applied: map[string]network.Result{}}
		r.devices[id] = d
	}
	fn(d)
}

func (r *Reconciler) remember(id string, dev Device, fn func(*DeviceMemory)) {
	r.withDevices(id, func(d *devices) {
		known := d.known[dev]
		fn(&known)
		d.known[dev] = known
	})
}

// unblock has all devices of a machine tried again now, since something happened that may have changed why they wait.
func (r *Reconciler) unblock(id string) {
	r.withDevices(id, func(d *devices) {
		for dev, known := range d.known {
			known.Block, known.Asked = Block{}, time.Time{}
			d.known[dev] = known
		}
	})
}

// viewDevices adds what planning looks at of a machine's devices.
func (r *Reconciler) viewDevices(v *View) {
	m := v.Machine
	v.Times = DeviceTimes{Repeat: r.o.DetachRepeat, Settle: r.o.DetachSettle, Keep: r.o.KeepDetached}
	v.Media, v.Wires, v.Known = map[string]string{}, map[string]Wire{}, map[Device]DeviceMemory{}
	v.Ready = map[string]bool{}
	for _, vol := range m.Desired.Volumes {
		if plugin, err := r.plugin(vol); err == nil {
			v.Media[vol.Name] = medium(plugin, vol)
		}
	}
	for _, n := range m.Desired.NICs {
		if plugin, ok := r.o.Networks[cmp.Or(m.Record.NICs[n.Name].Plugin, r.o.Network.Name())]; ok {
			v.Wires[n.Name] = wire(plugin, r.nicRequest(m, n))
		}
	}
	missing := map[Device]bool{}
	for name := range m.Record.Volumes {
		_, wanted := m.Desired.Volume(name)
		missing[Device{Name: name}] = !wanted
	}
	for name := range m.Record.NICs {
		_, wanted := m.Desired.NIC(name)
		missing[Device{NIC: true, Name: name}] = !wanted
	}
	r.withDevices(m.ID, func(d *devices) {
		changed := d.generation != m.Desired.Generation
		d.generation = m.Desired.Generation
		for name := range d.prepared {
			want, _ := m.Desired.Volume(name)
			v.Ready[name] = reachedAlike(want, d.from[name])
		}
		for dev, is := range missing {
			known := d.known[dev]
			switch {
			case !is:
				known.Missing = time.Time{}
			case known.Missing.IsZero():
				known.Missing = v.Now
			}
			d.known[dev] = known
		}
		for dev, known := range d.known {
			if changed { // what was refused may be possible now
				known.Block, known.tries = Block{}, 0
				d.known[dev] = known
			}
			v.Known[dev] = known
		}
	})
}

// reachedAlike reports whether two definitions of a volume differ in nothing but the size.
func reachedAlike(a, b machine.Volume) bool {
	if a.Connection == nil || b.Connection == nil {
		return a.Connection == b.Connection
	}
	one, other := *a.Connection, *b.Connection
	one.EffectiveStorageBytes, other.EffectiveStorageBytes = 0, 0
	return reflect.DeepEqual(one, other)
}

// medium is the identity of a volume over all plugins.
func medium(plugin volume.Plugin, v machine.Volume) string {
	return plugin.Name() + " " + plugin.Identity(v)
}

// isSameMedium compares media as medium names them. One that was recorded by another version of a plugin is taken for the
// one that is wanted.
func isSameMedium(recorded, wanted string) bool {
	by, before, _ := strings.Cut(recorded, " ")
	plugin, now, _ := strings.Cut(wanted, " ")
	return recorded == "" || by == plugin && volume.SameIdentity(before, now)
}

func wire(plugin network.Plugin, req network.Request) Wire {
	raw, _ := json.Marshal(req) // of texts and numbers alone
	sum := sha256.Sum256(raw)
	return Wire{
		Identity: plugin.Name() + " " + plugin.Identity(req.Interface), Definition: hex.EncodeToString(sum[:8]),
	}
}

// complete fills in what records of older versions lack, and writes anew what they call a medium. A VMM that lives then was
// given all that was prepared.
func (r *Reconciler) complete(ctx context.Context, m *machine.Machine) (*machine.Machine, error) {
	old := false
	for name, rec := range m.Record.Volumes {
		_, other := r.renamed(m, name, rec)
		old = old || other || rec.Identity == ""
	}
	for _, rec := range m.Record.NICs {
		old = old || rec.Plugin != "" && rec.Definition == ""
	}
	if !old {
		return m, nil
	}
	return r.o.Store.UpdateRecord(ctx, m.ID, func(rec *machine.Record) error {
		boots := ""
		for _, first := range bootFirst(&m.Desired) {
			boots = first.Name
			break
		}
		for name, vol := range rec.Volumes {
			if now, other := r.renamed(m, name, vol); other {
				vol.Identity = now
				rec.Volumes[name] = vol
			}
			want, wanted := m.Desired.Volume(name)
			plugin, err := r.plugin(want)
			if vol.Identity != "" || !wanted || err != nil {
				continue
			}
			vol.Identity, vol.Device, vol.Held = medium(plugin, want), want.Device, true
			if rec.VMM != nil {
				vol.Given, vol.Boot, vol.GuestBytes = true, name == boots, vol.SizeBytes
			}
			rec.Volumes[name] = vol
		}
		for name, nic := range rec.NICs {
			want, wanted := m.Desired.NIC(name)
			plugin, ok := r.o.Networks[nic.Plugin]
			if nic.Plugin == "" || nic.Definition != "" || !wanted || !ok {
				continue
			}
			w := wire(plugin, r.nicRequest(m, want))
			nic.Identity, nic.Definition, nic.Given = w.Identity, w.Definition, rec.VMM != nil
			rec.NICs[name] = nic
		}
		return nil
	})
}

// renamed returns what a wanted volume's medium is called now, if another version called it something else.
func (r *Reconciler) renamed(m *machine.Machine, name string, rec machine.VolumeRecord) (now string, other bool) {
	want, wanted := m.Desired.Volume(name)
	if !wanted || rec.Identity == "" {
		return "", false
	}
	plugin, err := r.plugin(want)
	if err != nil {
		return "", false
	}
	now = medium(plugin, want)
	return now, now != rec.Identity && isSameMedium(rec.Identity, now)
}

// runDevices does steps about devices. What fails or has to wait is noted for its own device, and keeps neither the
// others nor the machine from going on. The error is that of the context alone.
func (r *Reconciler) runDevices(ctx context.Context, planned *machine.Machine, steps []Step) error {
	stuck := map[Device]bool{}
	for _, step := range steps {
		dev := step.device()
		if stuck[dev] {
			continue
		}
		start := r.o.Now()
		changed, err := r.runOne(ctx, planned, step)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if changed {
			return nil
		}
		took := r.o.Now().Sub(start)
		r.o.Observe(step.Name, took, err)
		if err != nil {
			stuck[dev] = true
			r.block(planned, step, err)
			continue
		}
		r.remember(planned.ID, dev, func(known *DeviceMemory) { known.Block, known.tries = Block{}, 0 })
		r.o.Logger.Info("step done", "machine", planned.ID, "step", step.Name, "target", step.Target, "took", took)
	}
	return nil
}

// announce shows that a change of the spec was seen, and what it made of the devices, before the work on it begins: a
// copy may take long, and a client takes no status until then.
func (r *Reconciler) announce(ctx context.Context, v View, plan Plan) error {
	if v.Machine.Record.ObservedGeneration == v.Machine.Desired.Generation {
		return nil
	}
	notes := plan.Notes
	seen := map[Device]bool{}
	for _, step := range plan.Steps {
		if dev := step.device(); !seen[dev] {
			seen[dev] = true
			notes = append(notes, Note{Device: dev, Reason: ReasonChanging, Message: "is being changed"})
		}
	}
	err := r.publish(ctx, v, notes)
	if machine.IsKind(err, machine.Exhausted) { // no reason not to try
		return nil
	}
	return err
}

// block keeps a device from being tried again at once, and says why.
func (r *Reconciler) block(m *machine.Machine, step Step, failure error) {
	var pending *pendingError
	waits := errors.As(failure, &pending)
	var before, now Block
	r.remember(m.ID, step.device(), func(known *DeviceMemory) {
		before = known.Block
		if waits {
			now = Block{Reason: pending.reason, Message: pending.message, Until: r.o.Now().Add(pending.wait)}
			known.tries = 0
		} else {
			wait := jitter(capped(100*time.Millisecond, known.tries, r.o.MaxBackoff))
			now = Block{Reason: string(step.Name), Message: failure.Error(), Until: r.o.Now().Add(wait)}
			known.tries++
		}
		known.Block = now
	})
	switch {
	case !waits:
		r.o.Logger.Warn("device not as wanted", "machine", m.ID, "step", step.Name, "target", step.Target, "error", failure,
			"retry_in", now.Until.Sub(r.o.Now()))
		r.o.Events.Event(m, Warning, "StepFailed", actions[step.Name], fmt.Sprintf("%s: %s", step, failure))
	case before.Reason != now.Reason || before.Message != now.Message:
		r.o.Logger.Info("device waits", "machine", m.ID, "step", step.Name, "target", step.Target, "reason", now.Reason,
			"message", now.Message)
		r.o.Events.Event(m, Warning, now.Reason, actions[step.Name], step.Target+": "+now.Message)
	}
}

// actions are what events say was being done, by step.
var actions = map[StepName]string{
	StepVolumePrepare: "AttachVolume", StepVolumeAttach: "AttachVolume", StepVolumeResize: "ResizeVolume",
	StepVolumeDetach: "DetachVolume", StepVolumeRelease: "DetachVolume", StepVolumeDelete: "DeleteVolume",
	StepNICPrepare: "AttachNetworkInterface", StepNICAttach: "AttachNetworkInterface",
	StepNICDetach: "DetachNetworkInterface", StepNICRelease: "DetachNetworkInterface",
}

// deviceConditions says in a record how the devices are.
func deviceConditions(rec *machine.Record, running bool, notes []Note, now time.Time) {
	for _, kind := range []struct {
		condition string
		nics      bool
	}{{ConditionVolumes, false}, {ConditionNICs, true}} {
		reason, texts := "", []string{}
		for _, n := range notes {
			if n.Device.NIC == kind.nics {
				reason = cmp.Or(reason, n.Reason)
				texts = append(texts, n.Device.Name+": "+n.Message)
			}
		}
		const most = 3
		if more := len(texts) - most; more > 0 {
			texts = append(texts[:most], fmt.Sprintf("and %d more", more))
		}
		c := machine.Condition{
			Type: kind.condition, Status: machine.ConditionFalse, Reason: reason, Message: strings.Join(texts, "; "), LastTransition: now,
		}
		switch {
		case reason != "":
			rec.SetCondition(c)
		case running:
			c.Status, c.Reason = machine.ConditionTrue, "Attached"
			rec.SetCondition(c)
		default:
			rec.ClearCondition(kind.condition)
		}
	}
}

// watchNetwork wakes machines whose network interfaces may have changed, until ctx ends.
func (r *Reconciler) watchNetwork(ctx context.Context, plugin network.Plugin) {
	for ctx.Err() == nil {
		events := plugin.Events(ctx)
		if events == nil {
			return
		}
		for ref := range events {
			r.nicChanged(ref)
		}
		pause := time.NewTimer(time.Second) // one that ends by itself is asked for a new one, and not in a hurry
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

func (r *Reconciler) nicChanged(ref network.Ref) {
	if _, err := r.o.Store.Get(ref.MachineID); err != nil {
		return // the sweep sees to what belongs to no machine
	}
	r.remember(ref.MachineID, Device{NIC: true, Name: ref.Name}, func(known *DeviceMemory) {
		known.Applied, known.Block = false, Block{}
	})
	r.queue.Add(ref.MachineID)
}

// VolumeChanged has a volume prepared again, since what serves it came or went by itself.
func (r *Reconciler) VolumeChanged(ref volume.Ref) {
	m, err := r.o.Store.Get(ref.MachineID)
	if err != nil {
		return // the sweep sees to what belongs to no machine
	}
	if _, known := m.Record.Volumes[ref.Name]; !known {
		return
	}
	r.remember(ref.MachineID, Device{Name: ref.Name}, func(known *DeviceMemory) { known.Block = Block{} })
	r.withDevices(ref.MachineID, func(d *devices) { delete(d.prepared, ref.Name) })
	r.queue.Add(ref.MachineID)
}

// pluggerError turns a refusal that is not a failure into something to wait for.
func (r *Reconciler) pluggerError(err error) error {
	switch machine.KindOf(err) {
	case machine.Exhausted:
		return &pendingError{reason: "NoFreeSlot", message: err.Error(), wait: r.o.DetachRepeat}
	case machine.FailedPrecondition:
		return &pendingError{reason: "StillLeaving", message: err.Error(), wait: r.o.DetachRepeat}
	case machine.Unimplemented:
		return &pendingError{
			reason: ReasonRestartNeeded, message: err.Error() + "; the machine has to be started anew", wait: r.o.Resync,
		}
	}
	return err
}

// plugger returns the living VM's ability to change its devices.
func (r *Reconciler) plugger(ctx context.Context, id string) (vmm.VM, vmm.Plugger, error) {
	vm, err := r.living(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	plugger, ok := vm.(vmm.Plugger)
	if !ok {
		return nil, nil, machine.Errorf(machine.Unimplemented, "this VMM cannot change its devices")
	}
	return vm, plugger, nil
}
