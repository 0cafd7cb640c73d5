// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// marker makes the mark of one launch: state root, machine, launch.
func (r *Reconciler) marker(id string) string {
	var nonce [6]byte
	_, _ = rand.Read(nonce[:]) // never fails; see crypto/rand
	return r.markerPrefix(id) + hex.EncodeToString(nonce[:])
}

// markerPrefix is what all marks of a machine begin with.
func (r *Reconciler) markerPrefix(id string) string { return r.o.Store.ID() + "/" + id + "/" }

// launch starts the VMM process. The intent, with the mark under which the process can be found, is durable before
// the process exists; its identity is recorded right after.
func (r *Reconciler) launch(ctx context.Context, m *machine.Machine) error {
	cfg, err := r.vmConfig(ctx, m)
	if err != nil {
		return err
	}
	if err := r.o.Driver.Validate(cfg); err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.StateDir, 0o750); err != nil {
		return fmt.Errorf("make machine directory: %w", err)
	}
	spec, err := r.o.Driver.Prepare(ctx, cfg)
	if err != nil {
		return err
	}
	spec.Name = "chp-vmm-" + m.ID
	spec.Marker = r.marker(m.ID)
	spec.Output = filepath.Join(cfg.StateDir, vmmOutput)
	rec := machine.VMMRecord{Driver: r.o.Driver.Name(), Marker: spec.Marker, LaunchedAt: r.o.Now()}
	if cfg.Ignition != nil {
		rec.Ignition = string(cfg.Ignition.Transport)
	}
	if err := r.record(ctx, m.ID, func(record *machine.Record) {
		record.VMM = &rec
		r.giveAll(record, m)
	}); err != nil {
		return err
	}
	if err := r.o.Failpoint(ctx, StepVMMLaunch, "intended"); err != nil {
		return err
	}
	proc, err := r.o.Supervisor.Start(ctx, spec)
	if err != nil {
		// The supervisor says that no process is left, or Find will tell: the next look decides by the mark.
		return fmt.Errorf("start VMM: %w", err)
	}
	if err := r.o.Failpoint(ctx, StepVMMLaunch, "spawned"); err != nil {
		return err
	}
	s := r.hold(m.ID, r.o.Driver, proc)
	id := machine.ProcessIdentity(proc.Identity())
	if err := r.record(ctx, m.ID, func(record *machine.Record) {
		if record.VMM != nil {
			record.VMM.Process = &id
		}
	}); err != nil {
		return err
	}
	text := r.o.Driver.Name() + " process started"
	if rec.Ignition != "" {
		text += ", Ignition payload goes by " + rec.Ignition
	}
	r.o.Events.Event(m, Normal, "VMMLaunched", "LaunchVMM", text)
	_, err = r.connect(ctx, m.ID, s)
	return err
}

// living returns the connection to the machine's VMM, which observe has just made.
func (r *Reconciler) living(ctx context.Context, id string) (vmm.VM, error) {
	s := r.session(id)
	if s == nil || s.ended() {
		return nil, machine.Errorf(machine.Unavailable, "the VMM process has ended")
	}
	return r.connect(ctx, id, s)
}

func (r *Reconciler) create(ctx context.Context, m *machine.Machine) error {
	cfg, err := r.vmConfig(ctx, m)
	if err != nil {
		return err
	}
	vm, err := r.living(ctx, m.ID)
	if err != nil {
		return err
	}
	if err := vm.Create(ctx, cfg); err != nil {
		return err
	}
	// The serial socket may exist only from now on; opening the same one again changes nothing.
	return r.o.Consoles.Open(m.ID, vm.Console(), r.o.consoleLog(m.ID))
}

func (r *Reconciler) boot(ctx context.Context, m *machine.Machine) error {
	vm, err := r.living(ctx, m.ID)
	if err != nil {
		return err
	}
	if err := vm.Boot(ctx); err != nil {
		return err
	}
	// Recorded here and not when it is seen running: a guest that goes down before that would be booted again and again
	// without a delay. A full disk is no reason not to go on; it is recorded when it is seen running, then.
	now := r.o.Now()
	if err := r.record(ctx, m.ID, func(rec *machine.Record) {
		if rec.VMM != nil && rec.VMM.BootedAt == nil {
			rec.VMM.BootedAt = &now
		}
	}); err != nil && !machine.IsKind(err, machine.Exhausted) {
		return err
	}
	r.o.Events.Event(m, Normal, "MachineBooted", "BootMachine", "the guest was started")
	return nil
}

// resume lets a guest go on that its VMM paused. That it worked is seen by the next look.
func (r *Reconciler) resume(ctx context.Context, m *machine.Machine) error {
	vm, err := r.living(ctx, m.ID)
	if err != nil {
		return err
	}
	if s := r.session(m.ID); s != nil {
		s.mu.Lock()
		s.resumed = r.o.Now()
		s.mu.Unlock()
	}
	return vm.Boot(ctx)
}

// paused says why a guest stands still, and until when.
func paused(problem string) string {
	return "the hypervisor paused the guest: " + problem + "; it goes on once that is over"
}

// guestStopped notes that the guest went down by itself. What follows is policy: it is started again, as
// libvirt-provider does, with a delay that grows when it happens again and again.
func (r *Reconciler) guestStopped(ctx context.Context, m *machine.Machine) error {
	if r.o.GuestOff == GuestOffKeep {
		r.o.Logger.Info("guest powered off, machine is left off", "machine", m.ID)
		r.o.Events.Event(m, Normal, "GuestStopped", "WatchGuest",
			"the guest powered off; the machine is left off until it is turned on")
		return r.record(ctx, m.ID, func(rec *machine.Record) { rec.KeptOff = m.Desired.Generation })
	}
	delay, err := r.recordExit(ctx, m, "guest powered off", "", func(rec *machine.Record) {
		if rec.VMM != nil {
			rec.VMM.BootedAt = nil
		}
	})
	if err != nil {
		return err
	}
	r.o.Logger.Info("guest powered off, machine is started again", "machine", m.ID, "restart_in", delay)
	r.o.Events.Event(m, Normal, "GuestStopped", "RestartMachine",
		"the guest powered off although the machine is to be on; it is started again in "+delay.String())
	return nil
}

// stableAfter is how long a guest must have run for the next crash to count as the first.
const stableAfter = 5 * time.Minute

// recordExit notes an unasked end and when the machine may start again.
func (r *Reconciler) recordExit(
	ctx context.Context, m *machine.Machine, reason, output string, more func(*machine.Record),
) (time.Duration, error) {
	now := r.o.Now()
	restarts := m.Record.Restarts
	if v := m.Record.VMM; v != nil && v.BootedAt != nil && now.Sub(*v.BootedAt) > stableAfter {
		restarts = 0
	}
	delay := time.Duration(0)
	if restarts > 0 {
		delay = capped(time.Second, restarts-1, r.o.MaxBackoff)
	}
	return delay, r.record(ctx, m.ID, func(rec *machine.Record) {
		rec.Exit = &machine.ExitRecord{At: now, Reason: reason, Output: output}
		rec.Restarts = restarts + 1
		rec.RestartAt = now.Add(delay)
		rec.State = machine.Pending
		more(rec)
	})
}

// stop asks the VMM to end; the intent is durable first. That the process ended is seen by its supervisor, and if
// it does not end in time it is killed by its proven identity.
func (r *Reconciler) stop(ctx context.Context, m *machine.Machine) error {
	now := r.o.Now()
	unrecorded := r.record(ctx, m.ID, func(rec *machine.Record) {
		if rec.VMM != nil {
			rec.VMM.StopAskedAt = &now
		}
		if sd := rec.Shutdown; sd != nil {
			sd.PowerCut = !now.Before(sd.Deadline) || now.Sub(sd.StartedAt) >= r.o.grace(m)
		}
	})
	if unrecorded != nil && !machine.IsKind(unrecorded, machine.Exhausted) {
		return unrecorded
	}
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	vm, err := r.living(ctx, m.ID)
	if err == nil {
		err = vm.Shutdown(ctx)
	}
	if errors.Is(err, vmm.ErrIdentity) {
		return err
	}
	if err != nil {
		r.o.Logger.Warn("VMM not asked to stop", "machine", m.ID, "error", err)
	}
	if unrecorded != nil { // when it was asked is not known later, so it is asked again; its end wakes the machine
		return &pendingError{reason: "StoppingVMM", message: "the VMM was asked to end", wait: stopPatience}
	}
	return nil
}

// killPatience is how long a worker waits for a killed process; what takes longer hangs in the kernel.
const killPatience = 2 * time.Second

// kill ends a VMM that did not end when asked, or that cannot go on; the intent is durable first. The pidfd that the
// supervisor holds is of the process whose mark names this machine and this launch.
func (r *Reconciler) kill(ctx context.Context, m *machine.Machine) error {
	s := r.session(m.ID)
	if s == nil {
		return machine.Errorf(machine.Unavailable, "the VMM process is not held")
	}
	if v := m.Record.VMM; v != nil && v.StopAskedAt == nil && v.KillReason == "" {
		if err := r.record(ctx, m.ID, func(rec *machine.Record) {
			if rec.VMM != nil {
				rec.VMM.KillReason = "the guest failed and could not go on"
			}
		}); err != nil {
			return err
		}
	}
	err := s.proc.Signal(ctx, syscall.SIGKILL)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill VMM: %w", err)
	}
	r.o.Events.Event(m, Warning, "VMMKilled", "StopMachine", "the VMM did not end by itself and was killed")
	patience := time.NewTimer(killPatience)
	defer patience.Stop()
	select {
	case <-s.proc.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-patience.C: // its end wakes the machine
		return &pendingError{
			reason: "VMMDoesNotEnd", message: "the VMM process does not end although it was killed", wait: stopPatience,
		}
	}
}

// reap clears up after a VMM process that is proven to be gone, and notes why if nobody had asked it to end.
func (r *Reconciler) reap(ctx context.Context, m *machine.Machine) error {
	rec := m.Record.VMM
	if rec == nil {
		return nil
	}
	reason, known := "", false
	if s := r.session(m.ID); s != nil {
		reason, known = exitReason(s.proc.Exit()), true
	}
	r.dropSession(m.ID)
	driver, ok := r.o.Drivers[rec.Driver]
	if !ok {
		driver = r.o.Driver
	}
	if err := driver.Cleanup(ctx, r.o.ref(m.ID)); err != nil {
		return fmt.Errorf("clean up after VMM: %w", err)
	}
	clearVMM := func(record *machine.Record) {
		record.VMM, record.Shutdown = nil, nil
		takeAll(record)
	}
	if stopping(m) || rec.Process == nil {
		r.tellShutdown(m)
		return r.record(ctx, m.ID, clearVMM)
	}
	last := lastOutput(filepath.Join(r.o.machineDir(m.ID), vmmOutput))
	switch {
	case rec.KillReason != "":
		reason = rec.KillReason
	case !known:
		reason = "ended while the daemon was away"
	}
	delay, err := r.recordExit(ctx, m, reason, last, clearVMM)
	if err != nil {
		return err
	}
	r.o.Logger.Warn("VMM ended unasked", "machine", m.ID, "reason", reason, "restart_in", delay)
	r.o.Events.Event(m, Warning, "VMMEnded", "RestartMachine",
		fmt.Sprintf("the VMM ended unasked (%s); the machine is started again in %s%s", reason, delay, printed(last)))
	return nil
}

func (r *Reconciler) removeDirectory(m *machine.Machine) error {
	for _, dir := range []string{r.o.ref(m.ID).RuntimeDir, r.o.machineDir(m.ID)} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove directory of the machine: %w", err)
		}
	}
	return nil
}

func (r *Reconciler) removeRecord(ctx context.Context, m *machine.Machine) error {
	if err := r.noteRemoved(m.ID); err != nil { // the sweep then proves less; a full disk is no reason to keep the machine
		r.o.Logger.Warn("removed machine is not listed", "machine", m.ID, "error", err)
	}
	if err := r.o.Store.Remove(ctx, m.ID); err != nil && !machine.IsKind(err, machine.NotFound) {
		return err
	}
	r.o.Events.Event(m, Normal, "MachineDeleted", "DeleteMachine", "the machine and all that belonged to it are gone")
	return nil
}
