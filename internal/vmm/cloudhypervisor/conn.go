// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

// conn is a control connection. Each call dials anew, so what connects is the socket's path: hence the UUID is asked
// for again before everything that changes something.
type conn struct {
	driver *Driver
	ref    vmm.Ref
	paths  paths
	client *api.Client
	major  int // version of the VMM
	events *eventQueue

	// turn is held by calls that change something: they consist of several requests.
	turn chan struct{}

	unfollow func() // nil if the event file is not followed
	closing  sync.Once
}

var _ vmm.VM = (*conn)(nil)

// Inspect asks the VMM; see vmm.VM.
func (v *conn) Inspect(ctx context.Context) (vmm.Observation, error) {
	const doing = "inspect VM"
	ping, err := v.client.Ping(ctx)
	if err != nil {
		return vmm.Observation{}, fail(doing, err)
	}
	o := vmm.Observation{State: vmm.StateEmpty, PID: ping.PID, Version: ping.Version}
	info, err := v.client.Info(ctx)
	switch {
	case errors.Is(err, api.ErrNotCreated):
		return o, nil
	case err != nil:
		return vmm.Observation{}, fail(doing, err)
	}
	o.MachineID = strings.ToLower(info.Config.MachineUUID())
	held := holdingsOf(info)
	o.Disks, o.NICs, o.Leaving = held.all(disks), held.all(nics), held.leavingIDs()
	switch info.State {
	case api.StateCreated, api.StateShutdown:
		o.State = vmm.StateIdle
	case api.StateRunning:
		o.State = vmm.StateRunning
	case api.StatePaused, api.StateBreakPoint:
		o.State = vmm.StatePaused
	default:
		return vmm.Observation{}, machine.Errorf(machine.Unavailable, "%s: the state %.40q is not known", doing, info.State)
	}
	return o, nil
}

// identify asks who the VM is. Defined is false when there is none, which is nobody's.
func (v *conn) identify(ctx context.Context) (info api.Info, defined bool, err error) {
	info, err = v.client.Info(ctx)
	switch {
	case errors.Is(err, api.ErrNotCreated):
		return api.Info{}, false, nil
	case err != nil:
		return api.Info{}, false, fail("ask for the machine's UUID", err)
	}
	if id := info.Config.MachineUUID(); !strings.EqualFold(id, v.ref.MachineID) {
		return api.Info{}, false, fmt.Errorf("the VM at %s has the UUID %.40q, not %s: %w", v.paths.api, id, v.ref.MachineID, vmm.ErrIdentity)
	}
	return info, true, nil
}

// change runs f alone, after the VM has proven who it is.
func (v *conn) change(ctx context.Context, doing string, f func(info api.Info, defined bool) error) error {
	select {
	case v.turn <- struct{}{}:
		defer func() { <-v.turn }()
	case <-ctx.Done():
		return machine.Wrap(machine.Unavailable, ctx.Err(), doing)
	}
	info, defined, err := v.identify(ctx)
	if err == nil {
		err = f(info, defined)
	}
	return fail(doing, err)
}

// PowerButton presses the power button; machine.FailedPrecondition unless the guest runs.
func (v *conn) PowerButton(ctx context.Context) error {
	return v.change(ctx, "press power button", func(api.Info, bool) error {
		return v.client.PowerButton(ctx)
	})
}

// Reset restarts the guest; machine.FailedPrecondition unless it runs or is paused.
func (v *conn) Reset(ctx context.Context) error {
	return v.change(ctx, "reset guest", func(api.Info, bool) error {
		return v.client.Reboot(ctx)
	})
}

// PowerOff cuts the guest's power. It asks for that also when the VM looks idle, since a boot that failed late
// leaves a half VM that holds locks and taps.
func (v *conn) PowerOff(ctx context.Context) error {
	return v.change(ctx, "power off guest", func(_ api.Info, defined bool) error {
		if !defined {
			return nil
		}
		return v.cutPower(ctx)
	})
}

// cutPower is done when there was no power.
func (v *conn) cutPower(ctx context.Context) error {
	err := v.client.Shutdown(ctx)
	if errors.Is(err, api.ErrNotRunning) || errors.Is(err, api.ErrNotCreated) {
		return nil
	}
	return err
}

// Shutdown ends the VMM.
func (v *conn) Shutdown(ctx context.Context) error {
	return v.change(ctx, "shut down VMM", func(api.Info, bool) error {
		return v.client.ShutdownVMM(ctx)
	})
}

// Events returns the events. The channel is closed by Close, and when the VMM says that it ends; that a VMM was
// killed is seen by its supervisor alone.
func (v *conn) Events() <-chan vmm.Event { return v.events.c }

// Console returns the serial console's socket. A new client throws the old one out; when the guest stops or
// restarts, the client sees the connection's end and the socket is made anew.
func (v *conn) Console() vmm.Console {
	return vmm.Console{Socket: v.paths.serial, ReplaysBacklog: v.major >= PreferredVersion}
}

// Close ends the connection.
func (v *conn) Close() error {
	v.release()
	return nil
}

func (v *conn) release() {
	v.closing.Do(func() {
		if v.unfollow != nil {
			v.unfollow()
		}
		v.events.close()
		v.client.Close()
	})
}
