// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmmtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

func guestCases() []suiteCase {
	return []suiteCase{
		{"the power button reaches the guest", powerButton},
		{"a guest that powers itself off leaves its VMM idle", guestPowersOff},
		{"a guest that restarts itself stays in its process", guestResets},
		{"the console carries text both ways", consoleText},
		{"the console keeps what nobody read, if that is claimed", consoleBacklog},
		{"Ignition reaches the guest by each claimed transport", ignition},
		{"a slow reader of events stalls nobody", slowReader},
	}
}

// needs skips a case that the guest has no part for.
func (b *bench) needs(able bool, what string) {
	b.Helper()
	if !able {
		b.Skipf("SKIPPED: this guest cannot %s", what)
	}
}

func powerButton(b *bench) {
	b.needs(b.s.Guest.ObeysPowerButton, "obey its power button")
	b.up()
	b.must("press power button", b.vm.PowerButton(b.ctx()))
	b.awaitEvent(vmm.EventGuestStopped)
	b.awaitState(vmm.StateIdle)
	b.wantSameProcess()
}

func guestPowersOff(b *bench) {
	b.needs(b.s.Guest.PowerOff != nil, "power itself off")
	guest := b.up()
	b.must("make the guest power off", b.s.Guest.PowerOff(b.ctx(), guest))
	b.awaitEvent(vmm.EventGuestStopped)
	b.awaitState(vmm.StateIdle)
	b.wantSameProcess()
	b.must("power off what is off", b.vm.PowerOff(b.ctx()))
	b.must("boot again", b.vm.Boot(b.ctx()))
	b.awaitGuest()
	b.wantState(vmm.StateRunning)
	b.wantSameProcess()
}

func guestResets(b *bench) {
	b.needs(b.s.Guest.Reset != nil, "restart itself")
	guest := b.up()
	b.must("make the guest restart", b.s.Guest.Reset(b.ctx(), guest))
	b.awaitEvent(vmm.EventGuestReset)
	b.awaitGuest()
	b.wantState(vmm.StateRunning)
	b.wantSameProcess()
}

func consoleText(b *bench) {
	b.up()
	const text = "vmmtest was here"
	_, err := b.tty.Write([]byte(text))
	b.must("type", err)
	// Guests echo what is typed.
	b.must("wait for the echo", b.tty.await(b.ctx(), text, 1))
}

// consoleBacklog boots while nobody is connected.
func consoleBacklog(b *bench) {
	b.start()
	if !b.vm.Console().ReplaysBacklog {
		b.Skip("SKIPPED: this VMM does not claim to keep the console's output")
	}
	b.must("boot", b.vm.Boot(b.ctx()))
	b.awaitEvent(vmm.EventBooted)
	b.awaitGuest()
}

func ignition(b *bench) {
	transports := b.driver.Capabilities().Ignition
	if len(transports) == 0 {
		b.Fatal("no transport is claimed")
	}
	for _, transport := range transports {
		payload := []byte(`{"ignition":{"version":"3.4.0"},"x":"` + b.cfg.MachineID + " " + string(transport) + `"}`)
		b.cfg.Ignition = &vmm.Ignition{Transport: transport, Data: payload}
		b.boots = 0
		if b.s.Guest.IgnitionText == nil || b.s.Guest.IgnitionText(transport, payload) == "" {
			b.Logf("SKIPPED IN PART: this guest cannot show what it got by %s; that it boots is all that is seen", transport)
			b.start()
			b.must("boot", b.vm.Boot(b.ctx()))
			b.wantDevices()
		} else {
			b.up()
			want := b.s.Guest.IgnitionText(transport, payload)
			b.must("find the payload by "+string(transport), b.tty.await(b.ctx(), want, 1))
			b.wantDevices()
		}
		b.must("shut down", b.vm.Shutdown(b.ctx()))
		b.awaitEnd()
		b.disconnect()
		if spec, err := b.driver.Prepare(b.ctx(), b.cfg); err != nil {
			b.Fatal(err)
		} else if bytes.Contains([]byte(strings.Join(append(spec.Argv, spec.Env...), " ")), payload) {
			b.Errorf("the payload by %s is in the command, which everybody may read", transport)
		}
	}
}

// slowReader makes more events than anybody would keep, reads none of them, and then wants to be told so.
func slowReader(b *bench) {
	b.start()
	b.must("boot", b.vm.Boot(b.ctx()))
	const resets = 150
	for i := range resets {
		ctx, cancel := context.WithTimeout(b.ctx(), b.s.Patience)
		b.must(fmt.Sprintf("reset %d while nobody reads", i), b.vm.Reset(ctx))
		cancel()
	}
	b.inspect()
	seen := map[vmm.EventKind]int{}
	timeout := time.After(b.s.Patience)
	for seen[vmm.EventResync] == 0 && seen[vmm.EventGuestReset] < resets {
		select {
		case e, ok := <-b.vm.Events():
			if !ok {
				b.Fatal("the events ended")
			}
			seen[e.Kind]++
		case <-timeout:
			b.Fatalf("%d resets gave %v: events are missing, and no %s says so", resets, seen, vmm.EventResync)
		}
	}
	// And goes on as before.
	b.must("power off", b.vm.PowerOff(b.ctx()))
	b.awaitEvent(vmm.EventGuestStopped)
}

// listens reports whether somebody accepts connections at a socket.
func listens(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}
