// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

// ConditionReady is the condition that says whether a machine is as wanted, and if not, at which step it stands. Devices
// that come and go while the guest runs have conditions of their own.
const ConditionReady = "Ready"

// publish writes what follows from desired state, record and observation, if it differs from what was last shown.
func (r *Reconciler) publish(ctx context.Context, v View, notes []Note) error {
	now := r.o.Now()
	_, err := r.o.Store.UpdateRecord(ctx, v.Machine.ID, func(rec *machine.Record) error {
		applyStatus(rec, v, now)
		deviceConditions(rec, v.runs(), notes, now)
		return nil
	})
	if machine.IsKind(err, machine.NotFound) {
		return nil
	}
	return err
}

func applyStatus(rec *machine.Record, v View, now time.Time) {
	d := &v.Machine.Desired
	running := v.runs()
	rec.ObservedGeneration = d.Generation
	rec.State = shownState(v, running, rec.State)
	if running && rec.VMM != nil && rec.VMM.BootedAt == nil {
		rec.VMM.BootedAt = &now
	}
	if running {
		attach(rec, v)
		if rec.VMM != nil {
			rec.VMM.KillReason = "" // it went on after all
		}
	}
	c := machine.Condition{Type: ConditionReady, Status: machine.ConditionTrue, Reason: string(rec.State), LastTransition: now}
	if !running && d.Power == machine.PowerOn && !v.Machine.IsKeptOff() {
		c.Status = machine.ConditionFalse
		if rec.Exit != nil && rec.RestartAt.After(now) {
			c.Reason, c.Message = "RestartDelayed", fmt.Sprintf("%s; restart %d waits%s", rec.Exit.Reason, rec.Restarts, printed(rec.Exit.Output))
		}
	}
	if running && v.VM.State == vmm.StatePaused && v.VM.Problem != "" {
		c.Status, c.Reason, c.Message = machine.ConditionFalse, "GuestPaused", paused(v.VM.Problem)
	}
	if rec.Shutdown != nil && v.Process == ProcessAlive {
		c.Status = machine.ConditionFalse
		c.Reason, c.Message = shutdownCondition(rec.Shutdown)
	}
	rec.SetCondition(c)
}

func shownState(v View, running bool, before machine.State) machine.State {
	d := &v.Machine.Desired
	switch {
	case d.Deleting():
		return machine.Terminating
	case running:
		return machine.Running
	case (d.Power == machine.PowerOff || v.Machine.IsKeptOff()) && v.Process == ProcessNone:
		return machine.Suspended
	case d.Power == machine.PowerOff && before != "": // on its way down
		return before
	}
	return machine.Pending
}

// runs reports whether there is a guest that runs.
func (v View) runs() bool {
	return v.Process == ProcessAlive && (v.VM.State == vmm.StateRunning || v.VM.State == vmm.StatePaused)
}

// attach marks what the VMM was seen to have and is what is wanted.
func attach(rec *machine.Record, v View) {
	d := &v.Machine.Desired
	for name, vol := range rec.Volumes {
		_, wanted := d.Volume(name)
		fit, id := wanted && v.fits(name, vol), Device{Name: name}.id()
		leaving := slices.Contains(v.VM.Leaving, id)
		vol.Attached = fit && vol.Given && !leaving && slices.Contains(v.VM.Disks, id)
		if fit && !leaving { // a wish that was taken back
			vol.AskedAt = time.Time{}
		}
		if bytes, told := v.VM.DiskBytes[id]; told && vol.Given {
			vol.GuestBytes = bytes
		}
		rec.Volumes[name] = vol
	}
	for name, nic := range rec.NICs {
		_, wanted := d.NIC(name)
		fit := wanted && v.sameNIC(name, nic)
		id := Device{NIC: true, Name: name}.id()
		leaving := slices.Contains(v.VM.Leaving, id)
		nic.Attached = fit && nic.Given && !leaving && slices.Contains(v.VM.NICs, id)
		if fit && !leaving {
			nic.AskedAt = time.Time{}
		}
		rec.NICs[name] = nic
	}
}

// report shows a failure in the machine's condition and as an event, and gives the error back.
func (r *Reconciler) report(ctx context.Context, id, where string, failure error) error {
	if ctx.Err() != nil {
		return failure
	}
	m, err := r.o.Store.Get(id)
	if err != nil {
		return failure
	}
	r.o.Events.Event(m, Warning, "StepFailed", "Reconcile", failure.Error())
	return errors.Join(failure, r.show(ctx, m, where, failure.Error()))
}

// progress shows what a machine waits for. A device for which it waits is named, and told of in an event: that the
// machine is pending would not say why.
func (r *Reconciler) progress(ctx context.Context, id string, step Step, p *pendingError) error {
	m, err := r.o.Store.Get(id)
	if err != nil {
		return err
	}
	if step.Target == "" {
		return r.show(ctx, m, p.reason, p.message)
	}
	message := step.Target + ": " + p.message
	if before := m.Record.Condition(ConditionReady); before == nil || before.Reason != p.reason { // a message may change all the time
		r.o.Logger.Info("machine waits", "machine", id, "step", step.Name, "target", step.Target, "reason", p.reason, "message", p.message)
		r.o.Events.Event(m, Warning, p.reason, actions[step.Name], message)
	}
	return r.show(ctx, m, p.reason, message)
}

func (r *Reconciler) show(ctx context.Context, m *machine.Machine, reason, message string) error {
	now := r.o.Now()
	_, err := r.o.Store.UpdateRecord(ctx, m.ID, func(rec *machine.Record) error {
		// Observed, though not reached: until then a client takes no status at all, nor sees why.
		rec.ObservedGeneration = max(rec.ObservedGeneration, m.Desired.Generation)
		switch {
		case m.Desired.Deleting():
			rec.State = machine.Terminating
		case rec.State == "", rec.State == machine.Suspended && m.Desired.Power == machine.PowerOn && !m.IsKeptOff():
			rec.State = machine.Pending
		}
		rec.SetCondition(machine.Condition{
			Type: ConditionReady, Status: machine.ConditionFalse, Reason: reason, Message: message, LastTransition: now,
		})
		return nil
	})
	if machine.IsKind(err, machine.NotFound) || machine.IsKind(err, machine.Exhausted) {
		return nil // shown by the event; a full disk must not keep the work itself from going on
	}
	return err
}

// exitReason says in words how a process ended.
func exitReason(e process.Exit) string {
	switch {
	case !e.Known:
		return "exit status not known"
	case e.Signal != "":
		return e.Signal
	}
	return fmt.Sprintf("exit code %d", e.Code)
}
