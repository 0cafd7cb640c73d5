// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

func TestAShutdownGoesFromAgentToButtonToTheDeadline(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(d time.Duration) *time.Time { t := start.Add(d); return &t }
	const grace = 90 * time.Second
	begun := func(change func(*machine.ShutdownRecord)) *machine.ShutdownRecord {
		sd := &machine.ShutdownRecord{StartedAt: start, Deadline: start.Add(grace)}
		if change != nil {
			change(sd)
		}
		return sd
	}
	for _, c := range []struct {
		name  string
		after time.Duration
		grace time.Duration
		agent bool
		state vmm.State
		sd    *machine.ShutdownRecord
		step  StepName
		wait  time.Duration
	}{
		{name: "without grace the power is cut at once", state: vmm.StateRunning, step: StepVMMStop},
		{name: "the deadline is recorded first", grace: grace, state: vmm.StateRunning, step: StepShutdownBegin},
		{name: "a guest that is down has its VMM ended at once", grace: grace, state: vmm.StateIdle, step: StepVMMStop},
		{name: "a guest that never ran too", grace: grace, state: vmm.StateEmpty, step: StepVMMStop},
		{name: "a guest that cannot go on too", grace: grace, state: vmm.StateFailed, step: StepVMMStop},
		{name: "the agent is asked first", grace: grace, agent: true, state: vmm.StateRunning, sd: begun(nil), step: StepGuestShutdown},
		{name: "an agent that was asked has a third of the time", after: 10 * time.Second, grace: grace, agent: true, state: vmm.StateRunning, sd: begun(func(sd *machine.ShutdownRecord) { sd.AgentAskedAt = at(0) }), wait: 20 * time.Second},
		{name: "an agent that is missing costs nothing more", after: time.Second, grace: grace, agent: true, state: vmm.StateRunning, sd: begun(func(sd *machine.ShutdownRecord) { sd.AgentAskedAt, sd.AgentError = at(0), "no agent" }), step: StepPowerButton},
		{name: "after the agent's third the button is pressed", after: 30 * time.Second, grace: grace, agent: true, state: vmm.StateRunning, sd: begun(func(sd *machine.ShutdownRecord) { sd.AgentAskedAt = at(0) }), step: StepPowerButton},
		{name: "without an agent the button is pressed at once", grace: grace, state: vmm.StateRunning, sd: begun(nil), step: StepPowerButton},
		{name: "the button rests between two presses", after: 12 * time.Second, grace: grace, state: vmm.StateRunning, sd: begun(func(sd *machine.ShutdownRecord) { sd.ButtonAt = at(10 * time.Second) }), wait: 3 * time.Second},
		{name: "the button is pressed again", after: 15 * time.Second, grace: grace, state: vmm.StateRunning, sd: begun(func(sd *machine.ShutdownRecord) { sd.ButtonAt = at(10 * time.Second) }), step: StepPowerButton},
		{name: "no wait goes beyond the deadline", after: 88 * time.Second, grace: grace, state: vmm.StateRunning, sd: begun(func(sd *machine.ShutdownRecord) { sd.ButtonAt = at(87 * time.Second) }), wait: 2 * time.Second},
		{name: "at the deadline the power is cut", after: grace, grace: grace, state: vmm.StateRunning, sd: begun(nil), step: StepVMMStop},
		{name: "a shorter grace holds from now on", after: 31 * time.Second, grace: 30 * time.Second, state: vmm.StateRunning, sd: begun(nil), step: StepVMMStop},
		{name: "a VMM that does not answer is waited for", after: time.Second, grace: grace, sd: begun(nil), wait: DefaultButtonInterval},
		{name: "and stopped at the deadline", after: grace, grace: grace, sd: begun(nil), step: StepVMMStop},
		{name: "a clock set back does not make it wait", after: -24 * time.Hour, grace: grace, state: vmm.StateRunning, sd: begun(nil), step: StepVMMStop},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &machine.Machine{
				Desired: machine.Desired{DeletedAt: at(0)},
				Record:  machine.Record{VMM: &machine.VMMRecord{BootedAt: at(-time.Hour)}, Shutdown: c.sd},
			}
			plan := MakePlan(View{
				Machine: m, Process: ProcessAlive, VM: vmm.Observation{State: c.state}, Now: start.Add(c.after), Button: DefaultButtonInterval, Grace: c.grace, Agent: c.agent,
			})
			var step StepName
			if len(plan.Steps) > 0 {
				step = plan.Steps[0].Name
			}
			if step != c.step || plan.Wait != c.wait || len(plan.Steps) > 1 {
				t.Errorf("step %q, wait %s; want %q, %s", step, plan.Wait, c.step, c.wait)
			}
		})
	}
}

// graceful makes a daemon whose guests have a minute to go down.
func graceful(t *testing.T, h *host, more func(*Options)) *daemon {
	t.Helper()
	d := newDaemon(t, h)
	d.tweak = func(o *Options) {
		o.DeleteGrace, o.PowerOffGrace = time.Minute, time.Minute
		if more != nil {
			more(o)
		}
	}
	d.start(nil)
	return d
}

func TestAGuestThatObeysIsGoneLongBeforeTheDeadline(t *testing.T) {
	h := newHost()
	h.obeys = true
	d := graceful(t, h, nil)
	d.create(one)
	d.running(one)
	d.remove(one)
	d.gone(one)
	for _, reason := range []string{"ShutdownStarted", "PowerButtonPressed", "GuestShutDown"} {
		if !d.told.has(reason) {
			t.Errorf("no event %s: %v", reason, d.told.reasons)
		}
	}
	if d.told.has("PowerCut") || d.told.has("GuestStopped") || len(h.leaks()) > 0 {
		t.Errorf("events %v, left %v", d.told.reasons, h.leaks())
	}
}

func TestAGuestThatDoesNotObeyLosesItsPowerAtTheDeadline(t *testing.T) {
	h := newHost()
	d := graceful(t, h, func(o *Options) { o.DeleteGrace = 300 * time.Millisecond })
	d.create(one)
	d.running(one)
	d.remove(one)
	d.gone(one)
	if !d.told.has("PowerCut") || h.presses == 0 {
		t.Errorf("%d presses, events %v", h.presses, d.told.reasons)
	}
}

func TestWhileAGuestGoesDownTheMachineSaysSo(t *testing.T) {
	h := newHost()
	d := graceful(t, h, func(o *Options) {
		o.GuestShutdown = func(context.Context, vmm.VM) error { return errors.New("no agent answers") }
	})
	d.create(one)
	d.running(one)
	d.remove(one)
	m := d.until("shutting down", one, func(m *machine.Machine) bool {
		return m.Record.Condition(ConditionReady) != nil && ready(m).Reason == "ShuttingDown" && m.Record.Shutdown.ButtonAt != nil &&
			strings.Contains(ready(m).Message, "no agent answers")
	})
	if m.Record.State != machine.Terminating || !strings.Contains(ready(m).Message, "its power is cut at") {
		t.Errorf("state %s, condition %+v", m.Record.State, m.Record.Conditions[0])
	}
	version := m.Version
	d.r.Wake(one)
	d.until("looked at again", one, func(*machine.Machine) bool { return d.r.QueueLength() <= 1 })
	if m, _ := d.store.Get(one); m.Version != version {
		t.Error("a look at a machine that waits wrote something")
	}
	// A guest that goes down at last is cleaned up at once, with most of the minute left.
	h.with(t, one, func(g *guest) { g.state = vmm.StateIdle; h.tell(g, vmm.EventGuestStopped) })
	d.gone(one)
}

func TestADeletionGoesOnWithItsDeadlineAfterARestart(t *testing.T) {
	h := newHost()
	d := graceful(t, h, nil)
	d.create(one)
	d.running(one)
	d.remove(one)
	before := d.until("begun", one, func(m *machine.Machine) bool { return m.Record.Shutdown != nil && m.Record.Shutdown.ButtonAt != nil })
	d.stop()
	d.start(nil)
	after := d.until("still shutting down", one, func(m *machine.Machine) bool { return m != nil && m.Record.State == machine.Terminating })
	if !after.Record.Shutdown.Deadline.Equal(before.Record.Shutdown.Deadline) {
		t.Errorf("the deadline moved from %s to %s", before.Record.Shutdown.Deadline, after.Record.Shutdown.Deadline)
	}
	h.with(t, one, func(g *guest) { g.state = vmm.StateIdle; h.tell(g, vmm.EventGuestStopped) })
	d.gone(one)
}

func TestAGuestThatTurnsItselfOffStaysOffIfThatIsThePolicy(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.tweak = func(o *Options) { o.GuestOff = GuestOffKeep }
	d.start(nil)
	d.create(one)
	d.running(one)
	h.with(t, one, func(g *guest) { g.state = vmm.StateIdle; h.tell(g, vmm.EventGuestStopped) })
	off := func(m *machine.Machine) bool { return m.Record.State == machine.Suspended && m.Record.VMM == nil }
	m := d.until("kept off", one, off)
	if m.Record.Restarts != 0 || len(h.world.Living()) != 0 {
		t.Errorf("%d restarts, %d processes", m.Record.Restarts, len(h.world.Living()))
	}
	d.stop()
	d.start(nil)
	d.r.Wake(one)
	d.until("still off after a restart of the daemon", one, off)
	d.want(one, func(*machine.Desired) {}) // turned on: the generation rises
	d.running(one)
}

func TestAVMMWithoutAMachineIsToldAndLeftAlone(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	d.running(one)
	marker := d.r.marker(two)
	if _, err := d.r.o.Supervisor.Start(t.Context(), process.Spec{Name: "stray", Marker: marker, Argv: []string{"vmm"}}); err != nil {
		t.Fatal(err)
	}
	d.stop()
	var log bytes.Buffer
	d.tweak = func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) }
	d.start(nil)
	d.until("adopted, which comes after the audit", one, func(*machine.Machine) bool { return d.r.session(one) != nil })
	d.stop() // what was logged is complete now
	if text := log.String(); !strings.Contains(text, "machine="+two) || strings.Contains(text, "level=ERROR msg=\"a VMM runs whose machine is not in the store; it is left alone, see docs/operations.md\" machine="+one) {
		t.Errorf("log:\n%s", text)
	}
	if n := len(h.world.Living()); n != 2 {
		t.Errorf("%d processes live, want both", n)
	}
}

func TestWhatTheGuestSaysOfItselfIsShownAndChangesNothingElse(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	var said atomic.Pointer[string]
	d.tweak = func(o *Options) {
		o.Resync = 50 * time.Millisecond
		o.GuestInfo = func(context.Context, vmm.VM) (GuestFacts, error) {
			if text := said.Load(); text != nil {
				return GuestFacts{OS: "debian 12", Text: *text}, nil
			}
			return GuestFacts{}, errors.New("no agent")
		}
	}
	d.start(nil)
	d.create(one)
	guest := func(m *machine.Machine) machine.Condition {
		for _, c := range m.Record.Conditions {
			if c.Type == ConditionGuestAgent {
				return c
			}
		}
		return machine.Condition{}
	}
	d.until("no agent", one, func(m *machine.Machine) bool { return m != nil && guest(m).Status == machine.ConditionFalse })
	m := d.running(one)
	if m.Record.Conditions[len(m.Record.Conditions)-1].Status != machine.ConditionTrue {
		t.Errorf("a missing agent makes the machine unready: %+v", m.Record.Conditions)
	}
	text := "Debian, 10.0.2.15"
	said.Store(&text)
	d.until("told", one, func(m *machine.Machine) bool { return guest(m).Message == text && m.Record.GuestOS == "debian 12" })
}

func TestTheLogOfAVMMIsBounded(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "vmm.log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640) // as the VMM has it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	write := func(text string) {
		t.Helper()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write("a little")
	if err := emptyIfLarge(path); err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(path); info.Size() != 8 {
		t.Errorf("a small log has %d bytes now", info.Size())
	}
	write(strings.Repeat("complaint\n", maxOutput/10+100) + "the last words")
	_ = f.Sync() // blocks are counted once they are allocated
	if err := emptyIfLarge(path); err != nil {
		t.Fatal(err)
	}
	kept, _ := os.ReadFile(path + ".old")
	if !strings.HasSuffix(string(kept), "the last words") || len(kept) != keptOutput {
		t.Errorf("%d bytes are kept", len(kept))
	}
	write("and on")
	if now, _ := os.ReadFile(path); string(now) != "and on" {
		t.Errorf("after that the log is %q", now)
	}
}
