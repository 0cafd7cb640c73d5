// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu_test

import (
	"errors"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/guestagent"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

// agent makes a client of the guest's agent.
func (r *rig) agent(timeout time.Duration) *guestagent.Client {
	r.Helper()
	client, err := guestagent.New(guestagent.Options{Dial: r.vm.(vmm.GuestAgentDialer).DialGuestAgent, Timeout: timeout})
	r.must("make client of guest agent", err)
	return client
}

// awaitAgent waits until the agent, which starts beside the shell, answers.
func (r *rig) awaitAgent() {
	r.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := r.agent(5 * time.Second).Ping(r.ctx())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("the agent does not answer: %v", err)
		}
	}
}

func (r *rig) typeLine(line string) {
	r.Helper()
	_, err := io.WriteString(r.console, line+"\n")
	r.must("type", err)
}

func TestTheRealGuestAgentTellsAndObeys(t *testing.T) {
	cfg := linuxConfig(t, func(o *guest.Options) { o.GuestAgent = true })
	cfg.GuestAgent = true
	cfg.Boot.CommandLine += " chp.agent"
	r := start(t, newDriver(t), cfg)
	r.must("create", r.vm.Create(r.ctx(), cfg))
	if err := r.agent(patience).Ping(r.ctx()); !errors.Is(err, guestagent.ErrNoAgent) || !machine.IsKind(err, machine.Unavailable) {
		t.Errorf("ping before boot: %v", err)
	}
	r.must("boot", r.vm.Boot(r.ctx()))
	r.expect("guest: ready login:")
	r.awaitAgent()
	r.expect("guest: dhcp eth1 ip=10.0.2.15/24")

	agent := r.agent(patience)
	interfaces, err := agent.Interfaces(r.ctx())
	r.must("ask for interfaces", err)
	has := func(name, mac, address string) {
		t.Helper()
		if !slices.ContainsFunc(interfaces, func(i guestagent.Interface) bool {
			return i.Name == name && i.MAC == mac && (address == "" || slices.Contains(i.Addresses, netip.MustParsePrefix(address)))
		}) {
			t.Errorf("interfaces %v lack %s %s %s", interfaces, name, mac, address)
		}
	}
	has("lo", "00:00:00:00:00:00", "127.0.0.1/8")
	has("eth0", cfg.NICs[0].MAC, "")
	has("eth1", cfg.NICs[1].MAC, "10.0.2.15/24")
	info, err := agent.OSInfo(r.ctx())
	r.must("ask for the operating system", err)
	if info.ID != "chp-guest" || info.Machine != "x86_64" || info.KernelRelease == "" {
		t.Errorf("operating system %+v", info)
	}
	name, err := agent.HostName(r.ctx())
	r.must("ask for the host name", err)
	if name == "" {
		t.Error("the host name is empty")
	}

	// What was asked while the agent hung is answered in one go when it wakes up, and must be nobody's answer.
	r.typeLine("kill -STOP $(pidof qemu-ga); echo st''opped")
	r.expect("stopped")
	for range 3 {
		err := r.agent(500 * time.Millisecond).Ping(r.ctx())
		if !errors.Is(err, guestagent.ErrNoAgent) || !errors.Is(err, guestagent.ErrTimeout) {
			t.Errorf("ping of an agent that hangs: %v", err)
		}
	}
	r.typeLine("kill -CONT $(pidof qemu-ga)")
	r.awaitAgent()

	r.must("restart by agent", r.agent(patience).Shutdown(r.ctx(), guestagent.Reboot))
	r.await(vmm.EventGuestReset)
	r.expect("guest: boot-count 2")
	r.expect("guest: ready login:")
	r.awaitAgent()
	r.must("shut down by agent", r.agent(patience).Shutdown(r.ctx(), guestagent.PowerDown))
	if e := r.await(vmm.EventGuestStopped); e.Reason != "guest-shutdown" {
		t.Errorf("the guest stopped because of %q, want guest-shutdown", e.Reason)
	}
	o, err := r.vm.Inspect(r.ctx())
	r.must("inspect", err)
	if o.State != vmm.StateIdle {
		t.Errorf("the state is %s, want %s", o.State, vmm.StateIdle)
	}
}
