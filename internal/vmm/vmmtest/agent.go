// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmmtest

import (
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/guestagent"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

func agentCases() []suiteCase {
	return []suiteCase{
		{"a machine without a channel for a guest agent says so", noAgentChannel},
		{"a guest without an agent is found out and lives on", noAgent},
		{"the guest agent answers after each boot, and its shutdown stops the guest", agentAnswers},
	}
}

// agent makes a client of the guest agent. One that is not there costs the timeout.
func (b *bench) agent(timeout time.Duration) *guestagent.Client {
	b.Helper()
	dialer, ok := b.vm.(vmm.GuestAgentDialer)
	if !ok {
		b.Fatal("the driver claims guest agents, but its VM does not dial them")
	}
	client, err := guestagent.New(guestagent.Options{Dial: dialer.DialGuestAgent, Timeout: timeout})
	b.must("make client of guest agent", err)
	return client
}

func noAgentChannel(b *bench) {
	b.needs(b.driver.Capabilities().GuestAgent, "be reached by this driver through an agent")
	b.up()
	b.wantKind("ping", b.agent(b.s.Patience).Ping(b.ctx()), machine.Unavailable)
	b.wantSameProcess()
}

func noAgent(b *bench) {
	b.needs(b.driver.Capabilities().GuestAgent && !b.s.Guest.Agent, "be without an agent")
	b.cfg.GuestAgent = true
	b.start()
	b.wantKind("ping before boot", b.agent(time.Second).Ping(b.ctx()), machine.Unavailable)
	b.must("boot", b.vm.Boot(b.ctx()))
	b.awaitGuest()
	b.wantKind("ping", b.agent(time.Second).Ping(b.ctx()), machine.Unavailable)
	b.wantState(vmm.StateRunning)
	b.wantDevices()
	b.must("create again", b.vm.Create(b.ctx(), b.cfg))
	b.must("power off", b.vm.PowerOff(b.ctx()))
	b.must("create when stopped", b.vm.Create(b.ctx(), b.cfg))
	b.must("boot again", b.vm.Boot(b.ctx()))
	b.awaitGuest()
	b.wantSameProcess()
}

func agentAnswers(b *bench) {
	b.needs(b.driver.Capabilities().GuestAgent && b.s.Guest.Agent, "run an agent")
	b.cfg.GuestAgent = true
	b.up()
	b.awaitAgent()
	list, err := b.agent(b.s.Patience).Interfaces(b.ctx())
	b.must("ask for interfaces", err)
	seen := map[string]bool{}
	for _, i := range list {
		seen[i.MAC] = true
	}
	for _, n := range b.cfg.NICs {
		if !seen[n.MAC] {
			b.Errorf("the agent does not show %s, only %v", n.MAC, list)
		}
	}
	b.must("reset", b.vm.Reset(b.ctx()))
	b.awaitEvent(vmm.EventGuestReset)
	b.awaitGuest()
	b.awaitAgent()
	b.must("shut down by agent", b.agent(b.s.Patience).Shutdown(b.ctx(), guestagent.PowerDown))
	b.awaitEvent(vmm.EventGuestStopped)
	b.awaitState(vmm.StateIdle)
	b.wantKind("ping what is off", b.agent(time.Second).Ping(b.ctx()), machine.Unavailable)
	b.must("boot again", b.vm.Boot(b.ctx()))
	b.awaitGuest()
	b.awaitAgent()
	b.wantSameProcess()
}

// awaitAgent waits until the agent answers, which may be after the guest is up.
func (b *bench) awaitAgent() {
	b.Helper()
	client := b.agent(guestagent.DefaultTimeout)
	start := time.Now()
	for deadline := start.Add(b.s.Patience); ; time.Sleep(20 * time.Millisecond) {
		err := client.Ping(b.ctx())
		if err == nil {
			b.Logf("the agent answers %s after the guest is up", time.Since(start).Round(time.Millisecond))
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("the agent does not answer: %v", err)
		}
	}
}
