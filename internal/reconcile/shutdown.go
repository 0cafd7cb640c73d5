// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// GuestOffPolicy says what follows when a guest powers itself off although its machine is to be on.
type GuestOffPolicy string

// The policies.
const (
	GuestOffRestart GuestOffPolicy = "restart" // start it again, as libvirt-provider does
	GuestOffKeep    GuestOffPolicy = "keep"    // leave it off (suspended) until somebody turns it on
)

// agentCall bounds one call of the guest agent; its share of the whole is a third.
const agentCall = 5 * time.Second

// grace is how long the guest of a machine that is to stop may take.
func (o *Options) grace(m *machine.Machine) time.Duration {
	if m.Desired.Deleting() {
		return o.DeleteGrace
	}
	return o.PowerOffGrace
}

// planShutdown leads a running guest down: agent, power button again and again, and the power is cut at the deadline.
// The moment the guest is down its VMM is ended.
func planShutdown(v View) Plan {
	sd := v.Machine.Record.Shutdown
	running := v.VM.State == vmm.StateRunning || v.VM.State == "" // "" = it does not answer; it may yet
	if v.Grace <= 0 || !running {
		return Plan{Steps: []Step{{Name: StepVMMStop}}}
	}
	if sd == nil {
		return Plan{Steps: []Step{{Name: StepShutdownBegin}}}
	}
	left := min(sd.Deadline.Sub(v.Now), sd.StartedAt.Add(v.Grace).Sub(v.Now))
	if left <= 0 || left > v.Grace+time.Minute { // the second: the clock was set back
		return Plan{Steps: []Step{{Name: StepVMMStop}}}
	}
	if v.VM.State == "" {
		return Plan{Wait: min(left, v.Button)}
	}
	if v.Agent && sd.AgentAskedAt == nil {
		return Plan{Steps: []Step{{Name: StepGuestShutdown}}}
	}
	if third := sd.StartedAt.Add(v.Grace / 3).Sub(v.Now); sd.AgentAskedAt != nil && sd.AgentError == "" && third > 0 {
		return Plan{Wait: min(left, third)}
	}
	if sd.ButtonAt != nil {
		if next := sd.ButtonAt.Add(v.Button).Sub(v.Now); next > 0 && next <= v.Button {
			return Plan{Wait: min(left, next)}
		}
	}
	return Plan{Steps: []Step{{Name: StepPowerButton}}}
}

// beginShutdown makes the deadline durable before the guest is asked for anything.
func (r *Reconciler) beginShutdown(ctx context.Context, m *machine.Machine) error {
	now, grace := r.o.Now(), r.o.grace(m)
	if err := r.record(ctx, m.ID, func(rec *machine.Record) {
		rec.Shutdown = &machine.ShutdownRecord{StartedAt: now, Deadline: now.Add(grace)}
	}); err != nil {
		if machine.IsKind(err, machine.Exhausted) {
			return r.shutDownUnrecorded(ctx, m)
		}
		return err
	}
	r.o.Events.Event(m, Normal, "ShutdownStarted", "ShutdownMachine",
		fmt.Sprintf("the guest is asked to shut down; its power is cut after %s", grace))
	return nil
}

// shutDownUnrecorded leads a guest down while the disk is too full for its deadline: a full disk must not cost a guest
// its grace. The time is kept in memory, so that a restart of the daemon gives the guest more of it, never less.
func (r *Reconciler) shutDownUnrecorded(ctx context.Context, m *machine.Machine) error {
	now, grace := r.o.Now(), r.o.grace(m)
	r.mu.Lock()
	begun, ok := r.unrecorded[m.ID]
	if !ok {
		begun = now
		r.unrecorded[m.ID] = begun
	}
	r.mu.Unlock()
	left := grace - now.Sub(begun)
	if left <= 0 {
		return r.stop(ctx, m)
	}
	vm, err := r.living(ctx, m.ID)
	if err == nil {
		err = vm.PowerButton(ctx)
	}
	if errors.Is(err, vmm.ErrIdentity) {
		return err
	}
	if err != nil {
		r.o.Logger.Warn("power button not pressed", "machine", m.ID, "error", err)
	}
	return &pendingError{
		reason: "ShuttingDown", message: "the guest was asked to shut down", wait: min(left, r.o.ButtonInterval),
	}
}

// cancelShutdown forgets a shutdown that is not wanted any more. A guest that goes down all the same is started again.
func (r *Reconciler) cancelShutdown(ctx context.Context, m *machine.Machine) error {
	return r.record(ctx, m.ID, func(rec *machine.Record) { rec.Shutdown = nil })
}

// askAgent asks the guest agent once. A guest without one costs a moment, and the button follows at once.
func (r *Reconciler) askAgent(ctx context.Context, m *machine.Machine) error {
	now := r.o.Now()
	call, cancel := context.WithTimeout(ctx, min(agentCall, r.o.grace(m)/3))
	defer cancel()
	vm, err := r.living(call, m.ID)
	if err == nil {
		err = r.o.GuestShutdown(call, vm)
	}
	text := ""
	if err != nil {
		text = err.Error()
		r.o.Events.Event(m, Warning, "GuestAgentFailed", "ShutdownMachine", "ask the guest agent to shut down: "+text)
	} else {
		r.o.Events.Event(m, Normal, "GuestAgentAsked", "ShutdownMachine", "the guest agent was asked to shut down")
	}
	return r.recordShutdown(ctx, m.ID, func(sd *machine.ShutdownRecord) { sd.AgentAskedAt, sd.AgentError = &now, text })
}

// pressButton presses the guest's power button. That it could not be pressed is no reason to stop counting down.
func (r *Reconciler) pressButton(ctx context.Context, m *machine.Machine) error {
	now := r.o.Now()
	vm, err := r.living(ctx, m.ID)
	if err == nil {
		err = vm.PowerButton(ctx)
	}
	text := ""
	switch {
	case errors.Is(err, vmm.ErrIdentity):
		return err
	case err != nil:
		text = err.Error()
		r.o.Events.Event(m, Warning, "PowerButtonFailed", "ShutdownMachine", "press the power button: "+text)
	default:
		r.o.Events.Event(m, Normal, "PowerButtonPressed", "ShutdownMachine", "the guest's power button was pressed")
	}
	return r.recordShutdown(ctx, m.ID, func(sd *machine.ShutdownRecord) { sd.ButtonAt, sd.ButtonError = &now, text })
}

// recordShutdown notes a sign given to the guest. A full disk keeps it from being noted, not from being repeated.
func (r *Reconciler) recordShutdown(ctx context.Context, id string, fn func(*machine.ShutdownRecord)) error {
	err := r.record(ctx, id, func(rec *machine.Record) {
		if rec.Shutdown != nil {
			fn(rec.Shutdown)
		}
	})
	if machine.IsKind(err, machine.Exhausted) {
		return &pendingError{reason: "ShuttingDown", message: "the guest was asked to shut down", wait: r.o.ButtonInterval}
	}
	return err
}

// shutdownCondition says how far a shutdown is, in words that stay the same while nothing changes.
func shutdownCondition(sd *machine.ShutdownRecord) (reason, message string) {
	message = fmt.Sprintf("the guest is asked to shut down since %s; its power is cut at %s",
		sd.StartedAt.UTC().Format(time.RFC3339), sd.Deadline.UTC().Format(time.RFC3339))
	for _, failure := range []string{sd.AgentError, sd.ButtonError} {
		if failure != "" {
			message += "; " + failure
		}
	}
	return "ShuttingDown", message
}

// tellShutdown says how a shutdown ended, once the VMM is gone.
func (r *Reconciler) tellShutdown(m *machine.Machine) {
	sd := m.Record.Shutdown
	if sd == nil {
		return
	}
	took := r.o.Now().Sub(sd.StartedAt).Round(100 * time.Millisecond)
	if sd.PowerCut {
		r.o.Events.Event(m, Warning, "PowerCut", "ShutdownMachine",
			fmt.Sprintf("the guest did not shut down within %s; its power was cut", sd.Deadline.Sub(sd.StartedAt)))
		return
	}
	r.o.Events.Event(m, Normal, "GuestShutDown", "ShutdownMachine", fmt.Sprintf("the guest shut down within %s", took))
}
