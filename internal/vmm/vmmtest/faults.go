// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmmtest

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

func faultCases() []suiteCase {
	return []suiteCase{
		{"connecting to nobody is unavailable when the time is up", connectToNobody},
		{"connecting to another machine's VMM changes nothing", otherMachine},
		{"a VMM that has become another machine's is left alone", replacedVMM},
		{"a restarted daemon finds the guest running", daemonRestart},
		{"a daemon that restarts again and again does no harm", daemonRestarts},
		{"a killed VMM is unavailable and can be started anew", killedVMM},
		{"a call ends when its context does", canceledCall},
		{"a closed connection delivers no event", closedConnection},
	}
}

func connectToNobody(b *bench) {
	for _, prepared := range []bool{false, true} {
		if prepared {
			_, err := b.driver.Prepare(b.ctx(), b.cfg)
			b.must("prepare", err)
		}
		ctx, cancel := context.WithTimeout(b.ctx(), 200*time.Millisecond)
		vm, err := b.driver.Connect(ctx, b.cfg.Ref)
		if vm != nil {
			b.must("close", vm.Close())
		}
		b.wantKind("connect to nobody", err, machine.Unavailable)
		if ctx.Err() == nil {
			b.Error("the driver gave up before the time was up")
		}
		cancel()
	}
}

func (b *bench) wantIdentityError(doing string, err error) {
	b.Helper()
	if !errors.Is(err, vmm.ErrIdentity) {
		b.Errorf("%s: error is %v, want ErrIdentity", doing, err)
	}
}

func otherMachine(b *bench) {
	b.start()
	b.must("boot", b.vm.Boot(b.ctx()))
	other := b.cfg.Ref
	other.MachineID = uuid.NewString()
	// Some VMMs serve one connection at a time.
	b.disconnect()
	vm, err := b.driver.Connect(b.ctx(), other)
	if vm != nil {
		b.must("close", vm.Close())
	}
	b.wantIdentityError("connect", err)
	b.connect()
	b.wantState(vmm.StateRunning)
	b.wantSameProcess()
}

// replacedVMM keeps a connection open over the end of its VMM and puts another machine's into its place.
func replacedVMM(b *bench) {
	b.start()
	old := b.vm
	b.must("shut down", b.vm.Shutdown(b.ctx()))
	b.awaitEnd()
	b.vm = nil
	defer func() { _ = old.Close() }()

	b.cfg.MachineID = uuid.NewString()
	b.start()
	b.must("boot", b.vm.Boot(b.ctx()))
	calls := map[string]func(context.Context) error{
		"boot": old.Boot, "power button": old.PowerButton, "reset": old.Reset, "power off": old.PowerOff, "shutdown": old.Shutdown,
	}
	for name, call := range b.plugCalls(old) {
		calls[name] = call
	}
	for name, call := range calls {
		err := call(b.ctx())
		if !errors.Is(err, vmm.ErrIdentity) && !machine.IsKind(err, machine.Unavailable) {
			b.Errorf("%s: error is %v, want ErrIdentity or unavailable", name, err)
		}
	}
	b.wantState(vmm.StateRunning)
	b.wantSameProcess()
}

// restartDaemon drops driver, connection and all that is known, but for the process' identity.
func (b *bench) restartDaemon() {
	b.Helper()
	b.disconnect()
	b.driver = b.s.Driver(b.T)
	b.connect()
}

func daemonRestart(b *bench) {
	b.up()
	b.restartDaemon()
	o := b.wantState(vmm.StateRunning)
	if o.MachineID != b.cfg.MachineID {
		b.Errorf("the VM is of machine %q, want %q", o.MachineID, b.cfg.MachineID)
	}
	b.wantDevices()
	b.wantSameProcess()
	proc, err := b.s.Supervisor.Adopt(b.ctx(), b.proc.Identity())
	b.must("adopt the process", err)
	b.must("power off", b.vm.PowerOff(b.ctx()))
	b.awaitEvent(vmm.EventGuestStopped)
	b.must("boot", b.vm.Boot(b.ctx()))
	b.awaitEvent(vmm.EventBooted)
	b.must("shut down", b.vm.Shutdown(b.ctx()))
	select {
	case <-proc.Done():
	case <-time.After(b.s.Patience):
		b.Error("the adopted process does not end")
	}
}

func daemonRestarts(b *bench) {
	b.launch()
	b.connect()
	b.restartDaemon()
	b.must("create", b.vm.Create(b.ctx(), b.cfg))
	b.restartDaemon()
	b.wantState(vmm.StateIdle)
	b.must("create again", b.vm.Create(b.ctx(), b.cfg))
	b.must("boot", b.vm.Boot(b.ctx()))
	for range 3 {
		b.restartDaemon()
		b.must("create again", b.vm.Create(b.ctx(), b.cfg))
		b.must("boot again", b.vm.Boot(b.ctx()))
		b.wantState(vmm.StateRunning)
	}
	b.must("power off", b.vm.PowerOff(b.ctx()))
	b.restartDaemon()
	b.wantState(vmm.StateIdle)
	b.wantSameProcess()
}

func killedVMM(b *bench) {
	b.up()
	socket := b.vm.Console().Socket
	b.must("kill", b.proc.Signal(b.ctx(), syscall.SIGKILL))
	b.awaitEnd()
	if exit := b.proc.Exit(); exit.Known && exit.Signal != "SIGKILL" {
		b.Errorf("the exit is %+v, want SIGKILL", exit)
	}
	_, err := b.vm.Inspect(b.ctx())
	b.wantKind("inspect", err, machine.Unavailable)
	calls := map[string]func(context.Context) error{
		"boot": b.vm.Boot, "power button": b.vm.PowerButton, "reset": b.vm.Reset,
		"power off": b.vm.PowerOff, "shutdown": b.vm.Shutdown,
	}
	for name, call := range b.plugCalls(b.vm) {
		calls[name] = call
	}
	for name, call := range calls {
		b.wantKind(name, call(b.ctx()), machine.Unavailable)
	}
	ctx, cancel := context.WithTimeout(b.ctx(), 100*time.Millisecond)
	defer cancel()
	_, err = b.driver.Connect(ctx, b.cfg.Ref)
	b.wantKind("connect", err, machine.Unavailable)
	b.disconnect()
	if listens(socket) {
		b.Error("somebody listens on the console of a VMM that was killed")
	}
	// What the killed one left behind is no obstacle.
	b.boots = 0
	b.up()
	b.wantState(vmm.StateRunning)
}

func canceledCall(b *bench) {
	b.start()
	ctx, cancel := context.WithCancel(b.ctx())
	cancel()
	_, err := b.vm.Inspect(ctx)
	b.wantKind("inspect", err, machine.Unavailable)
	calls := map[string]func(context.Context) error{
		"boot": b.vm.Boot, "reset": b.vm.Reset, "power off": b.vm.PowerOff, "shutdown": b.vm.Shutdown,
	}
	for name, call := range b.plugCalls(b.vm) {
		calls[name] = call
	}
	for name, call := range calls {
		b.wantKind(name, call(ctx), machine.Unavailable)
	}
	b.wantState(vmm.StateIdle)
	b.wantSameProcess()
}

func closedConnection(b *bench) {
	b.start()
	events := b.vm.Events()
	b.must("close", b.vm.Close())
	b.must("close again", b.vm.Close())
	timeout := time.After(b.s.Patience)
	for {
		select {
		case _, ok := <-events:
			if !ok {
				b.vm = nil
				b.connect()
				b.wantState(vmm.StateIdle)
				b.wantSameProcess()
				return
			}
		case <-timeout:
			b.Fatal("the channel of events stays open")
		}
	}
}
