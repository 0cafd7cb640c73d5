// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

// attach opens the console at the first try.
func (d *daemon) attach(id string) net.Conn {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	conn, err := console.Dial(ctx, d.path("run", "console.sock"), id, console.AttachOptions{TakeOver: true})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// tellsGuest types a line, once, and waits for an answer if one is expected.
func (d *daemon) tellsGuest(id, line, answer string) {
	d.t.Helper()
	conn := d.attach(id)
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte(line + "\n")); err != nil {
		d.t.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	for answer != "" && lines.Scan() {
		if strings.Contains(lines.Text(), answer) {
			return
		}
	}
	if answer != "" {
		d.t.Fatalf("the guest does not answer %q: %v", line, lines.Err())
	}
}

// A daemon that was just restarted said of a running machine that it "has no open console".
func TestAConsoleCanBeAttachedTheMomentTheDaemonIsBack(t *testing.T) {
	binary, _, fake := programs(t)
	registryHost, ref := serve(t)
	d := newDaemon(t, binary, registryHost, fakeBackend(fake).args...)
	d.start()
	id := d.create(newMachine(ref, "attach"))
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	for range 5 {
		d.sigkill()
		d.start()
		d.tellsGuest(id, "typed once", "typed once") // the fake guest echoes
	}
	d.gone(id)
	d.audit(0)
	d.sigterm()
}

func TestAGuestAgentThatHangsCostsAtMostAThirdOfTheTime(t *testing.T) {
	const grace = time.Minute
	binary, _, _ := programs(t)
	host, ref := serveGuest(t, guest.Options{GuestAgent: true}, "chp.agent")
	d := newDaemon(t, binary, host, "--hypervisor", "qemu", "--guest-agent-type", "Qemu",
		"--event-list-watch-source-resync-duration", "2s", "--shutdown-power-off-timeout", grace.String())
	d.start()
	id := d.create(newMachine(ref, "hung"))
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	d.until("the agent answers", func() bool {
		for _, c := range d.get(id).Status.MachineConditions {
			if c.Type == "GuestAgent" && c.Status == "True" {
				return true
			}
		}
		return false
	})
	d.tellsGuest(id, "kill -STOP $(pidof qemu-ga); echo stopped-$((40+2))", "stopped-42")
	began := time.Now()
	d.power(id, iri.Power_POWER_OFF)
	d.says(id, "guest: power button", 1)
	if took := time.Since(began); took > grace*2/3 { // a third, and a busy host
		t.Errorf("the power button was pressed after %s", took)
	}
	d.state(id, iri.MachineState_MACHINE_SUSPENDED)
	if took := time.Since(began); took > grace {
		t.Errorf("it took %s", took)
	}
	told := d.messages(id)
	if !strings.Contains(told, "GuestShutDown") || strings.Contains(told, "PowerCut") {
		t.Errorf("the power button was not enough:\n%s", told)
	}
	d.gone(id)
	d.audit(0)
	d.sigterm()
}

// A daemon that dies while it leads a guest down is followed by one that goes on, and the guest is not hurried.
func TestAKillInEachPhaseOfAShutdownEndsInOrderWithARealGuest(t *testing.T) {
	_, binary, _ := programs(t)
	host, ref := serveGuest(t, guest.Options{GuestAgent: true}, "chp.agent")
	for point, agent := range map[string]string{
		"shutdown.begin:after": "Qemu", "guest.shutdown:after": "Qemu",
		"power.button:after": "None", "vmm.stop:before": "None", "vmm.reap:after": "None", "volume.delete:after": "None",
	} {
		t.Run(point, func(t *testing.T) {
			d := newDaemon(t, binary, host, "--hypervisor", "qemu", "--guest-agent-type", agent,
				"--event-list-watch-source-resync-duration", "2s")
			d.env = []string{"CHP_FAILPOINTS=" + point + "=kill"}
			d.start()
			id := d.create(newMachine(ref, "phase"))
			d.state(id, iri.MachineState_MACHINE_RUNNING)
			d.says(id, "guest: ready login:", 1)
			began := time.Now()
			_, _ = d.DeleteMachine(t.Context(), &iri.DeleteMachineRequest{MachineId: id}) // the answer may be lost
			d.diesBySIGKILL()
			d.env = nil
			d.start()
			d.until("machine gone", func() bool { return d.get(id) == nil })
			if took := time.Since(began); took > 4*time.Minute { // its power would be cut after 5
				t.Errorf("the guest did not go down by itself: %s", took)
			}
			d.audit(0)
			d.sigterm()
		})
	}
}

func TestAGuestThatRebootsOrPowersItselfOff(t *testing.T) {
	binary, _, _ := programs(t)
	host, ref := serve(t)
	for _, policy := range []string{"restart", "keep"} {
		t.Run(policy, func(t *testing.T) {
			d := newDaemon(t, binary, host, "--hypervisor", "qemu", "--shutdown-on-guest-power-off", policy)
			d.start()
			id := d.create(newMachine(ref, "self"))
			d.state(id, iri.MachineState_MACHINE_RUNNING)
			d.says(id, "guest: ready login:", 1)
			pid := d.vmm(id)
			d.tellsGuest(id, "reboot", "guest: reboot")
			d.says(id, "guest: ready login:", 2)
			if now := d.vmm(id); now != pid {
				t.Errorf("the reboot made VMM %d of %d", now, pid)
			}
			d.tellsGuest(id, "poweroff", "guest: power off")
			if policy == "restart" {
				d.says(id, "guest: ready login:", 3)
				d.state(id, iri.MachineState_MACHINE_RUNNING)
			} else {
				d.state(id, iri.MachineState_MACHINE_SUSPENDED)
				d.power(id, iri.Power_POWER_ON)
				d.says(id, "guest: boot-count 3", 1) // from the same disk
			}
			d.gone(id)
			d.audit(0)
			d.sigterm()
		})
	}
}
