// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/qemu/qmp"
)

// Polling while QEMU comes up or changes its state; both take 0.01 to 0.3 s.
const (
	connectPoll = 20 * time.Millisecond
	statePoll   = 5 * time.Millisecond
)

// virtualMachine is a control connection to one QEMU.
type virtualMachine struct {
	ref    vmm.Ref
	client *qmp.Client
	events *eventQueue
	power  chan struct{} // held while a call changes power or devices
}

var _ vmm.VM = (*virtualMachine)(nil)

// Connect opens a control connection and checks whose VM it is.
func (d *Driver) Connect(ctx context.Context, ref vmm.Ref) (vmm.VM, error) {
	if err := validateRef(ref); err != nil {
		return nil, err
	}
	events := newEventQueue()
	client, err := dialUntil(ctx, filepath.Join(ref.RuntimeDir, qmpSocket), qmp.Options{OnEvent: events.observe})
	if err != nil {
		events.close()
		return nil, machine.Wrap(machine.Unavailable, err, "connect to QEMU")
	}
	vm := &virtualMachine{ref: ref, client: client, events: events, power: make(chan struct{}, 1)}
	if err := vm.identify(ctx); err != nil {
		_ = vm.Close()
		return nil, err
	}
	go func() {
		<-client.Done()
		events.finish()
	}()
	return vm, nil
}

// dialUntil retries what may pass by itself until ctx ends.
func dialUntil(ctx context.Context, path string, opts qmp.Options) (*qmp.Client, error) {
	tick := time.NewTicker(connectPoll)
	defer tick.Stop()
	for {
		client, err := qmp.Dial(ctx, path, opts)
		// The dialler's clock may strike a little before that of ctx.
		if err == nil || !qmp.Retryable(err) && !errors.Is(err, context.DeadlineExceeded) {
			return client, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w; last failure: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// ask runs a command. What QEMU refuses stays a *qmp.Error, all else means
// that it could not be asked.
func (v *virtualMachine) ask(ctx context.Context, command string, args, result any) error {
	err := v.client.Execute(ctx, command, args, result)
	var refused *qmp.Error
	if err == nil || errors.As(err, &refused) {
		return err
	}
	return machine.Wrap(machine.Unavailable, err, "ask QEMU")
}

// identify asks for the UUID and compares it with the machine's.
func (v *virtualMachine) identify(ctx context.Context) error {
	id, err := v.uuid(ctx)
	if err != nil {
		return err
	}
	if !strings.EqualFold(id, v.ref.MachineID) {
		return fmt.Errorf("machine %s, QEMU of %s: %w", v.ref.MachineID, id, vmm.ErrIdentity)
	}
	return nil
}

func (v *virtualMachine) uuid(ctx context.Context) (string, error) {
	var reply struct {
		UUID string `json:"UUID"`
	}
	err := v.ask(ctx, "query-uuid", nil, &reply)
	return reply.UUID, err
}

// status is QEMU's name of the run state.
func (v *virtualMachine) status(ctx context.Context) (string, error) {
	var reply struct {
		Status string `json:"status"`
	}
	err := v.ask(ctx, "query-status", nil, &reply)
	return reply.Status, err
}

// stateOf maps QEMU's run states (qapi/run-state.json, RunState).
func stateOf(status string) vmm.State {
	switch status {
	case "running", "suspended": // the latter: the guest sleeps and wakes up by itself
		return vmm.StateRunning
	case "prelaunch", "shutdown":
		return vmm.StateIdle
	case "internal-error", "guest-panicked", "watchdog":
		return vmm.StateFailed
	}
	// paused, io-error, debug and the states around migration
	return vmm.StatePaused
}

// needsReset says that QEMU refuses cont until it was reset.
func needsReset(status string) bool {
	return status == "shutdown" || status == "internal-error" || status == "guest-panicked"
}

// unavailable makes a refused question one that could not be asked.
func unavailable(err error) error {
	if machine.IsKind(err, machine.Unavailable) {
		return err
	}
	return machine.Wrap(machine.Unavailable, err, "ask QEMU")
}

// exclusive begins a call that changes something: alone, and on the right VM.
func (v *virtualMachine) exclusive(ctx context.Context) (release func(), err error) {
	select {
	case v.power <- struct{}{}:
	case <-ctx.Done():
		return nil, machine.Wrap(machine.Unavailable, ctx.Err(), "wait for another call to QEMU")
	}
	release = func() { <-v.power }
	if err := v.identify(ctx); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// Boot starts the guest unless it runs.
func (v *virtualMachine) Boot(ctx context.Context) error {
	release, err := v.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	status, err := v.status(ctx)
	if err != nil || stateOf(status) == vmm.StateRunning {
		return err
	}
	if needsReset(status) {
		if err := v.resetToStart(ctx); err != nil {
			return fmt.Errorf("reset the machine for its next boot: %w", err)
		}
	}
	if err := v.ask(ctx, "cont", nil, nil); err != nil {
		return fmt.Errorf("start the guest: %w", err)
	}
	return nil
}

// resetToStart resets a machine that does not run, which leads QEMU to
// "prelaunch". Nobody is told: the guest sees a fresh start.
func (v *virtualMachine) resetToStart(ctx context.Context) error {
	defer v.events.quiet()()
	if err := v.ask(ctx, "system_reset", nil, nil); err != nil {
		return err
	}
	return v.until(ctx, func() (bool, error) {
		status, err := v.status(ctx)
		return status == "prelaunch", err
	})
}

// until polls a condition that QEMU's main loop is about to make true.
func (v *virtualMachine) until(ctx context.Context, holds func() (bool, error)) error {
	tick := time.NewTicker(statePoll)
	defer tick.Stop()
	for {
		ok, err := holds()
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return machine.Wrap(machine.Unavailable, ctx.Err(), "wait for QEMU")
		case <-tick.C:
		}
	}
}

// PowerButton presses the guest's power button.
func (v *virtualMachine) PowerButton(ctx context.Context) error {
	release, err := v.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	status, err := v.status(ctx)
	if err != nil {
		return err
	}
	if stateOf(status) != vmm.StateRunning {
		return machine.Errorf(machine.FailedPrecondition, "press the power button: the guest is not running (%s)", status)
	}
	if err := v.ask(ctx, "system_powerdown", nil, nil); err != nil {
		return fmt.Errorf("press the power button: %w", err)
	}
	return nil
}

// Reset restarts the guest at once. A failed one runs again; a powered-off one
// is not started by it.
func (v *virtualMachine) Reset(ctx context.Context) error {
	release, err := v.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	status, err := v.status(ctx)
	if err != nil {
		return err
	}
	switch stateOf(status) {
	case vmm.StateRunning:
		if err := v.ask(ctx, "system_reset", nil, nil); err != nil {
			return fmt.Errorf("reset the guest: %w", err)
		}
		return nil
	case vmm.StateIdle:
		return machine.Errorf(machine.FailedPrecondition, "reset the guest: it is not running (%s)", status)
	}
	if err := v.resetToStart(ctx); err != nil {
		return fmt.Errorf("reset the guest: %w", err)
	}
	if err := v.ask(ctx, "cont", nil, nil); err != nil {
		return fmt.Errorf("start the guest after the reset: %w", err)
	}
	return nil
}

// PowerOff cuts the guest's power and keeps the process: QEMU has no command
// for that, but a reset while the processors stand still leads it back to
// where it was before the first boot.
func (v *virtualMachine) PowerOff(ctx context.Context) error {
	release, err := v.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	status, err := v.status(ctx)
	if err != nil || stateOf(status) == vmm.StateIdle {
		return err
	}
	loud := v.events.quiet()
	defer loud()
	if err := v.ask(ctx, "stop", nil, nil); err != nil {
		return fmt.Errorf("stop the processors: %w", err)
	}
	if err := v.resetToStart(ctx); err != nil {
		return fmt.Errorf("cut the power: %w", err)
	}
	v.events.push(vmm.Event{Kind: vmm.EventGuestStopped, Reason: "powered off", At: time.Now()})
	return nil
}

// Shutdown ends the QEMU process.
func (v *virtualMachine) Shutdown(ctx context.Context) error {
	release, err := v.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	err = v.ask(ctx, "quit", nil, nil)
	if err == nil || errors.Is(err, qmp.ErrClosed) {
		return nil
	}
	return fmt.Errorf("end the VMM process: %w", err)
}

// Events delivers what happens.
func (v *virtualMachine) Events() <-chan vmm.Event { return v.events.out }

// Console is the guest's first serial port. QEMU keeps nothing while nobody is
// connected, so whoever wants the output from power-on connects before Boot.
func (v *virtualMachine) Console() vmm.Console {
	return vmm.Console{Socket: filepath.Join(v.ref.RuntimeDir, serialSocket)}
}

// Close ends the connection.
func (v *virtualMachine) Close() error {
	err := v.client.Close()
	v.events.close()
	return err
}

// sorted returns a sorted list that is never nil.
func sorted(ids []string) []string {
	out := append([]string{}, ids...)
	slices.Sort(out)
	return out
}
