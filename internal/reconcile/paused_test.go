// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

func TestAGuestThatAFullHostPausedIsToldAndLetGoOnNowAndThen(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	d.running(one)
	boots := 0
	h.with(t, one, func(g *guest) {
		boots = g.boots
		g.state, g.problem = vmm.StatePaused, "disk-data: no space left on the host"
		h.tell(g, vmm.EventProblem)
	})
	m := d.until("the machine says that its guest is paused", one, func(m *machine.Machine) bool {
		c := m.Record.Condition(ConditionReady)
		return c != nil && c.Reason == "GuestPaused"
	})
	if c := m.Record.Condition(ConditionReady); m.Record.State != machine.Running || c.Status != machine.ConditionFalse || !strings.Contains(c.Message, "disk-data: no space") {
		t.Errorf("shown as %s, %+v", m.Record.State, c)
	}
	time.Sleep(300 * time.Millisecond) // in which a loop would try a thousand times
	h.with(t, one, func(g *guest) {
		if g.tries != 1 || g.boots != boots {
			t.Errorf("let go on %d times, booted %d times", g.tries, g.boots-boots)
		}
		g.state, g.problem = vmm.StateRunning, "" // there is space again
	})
	d.r.Wake(one)
	d.until("the machine is well", one, func(m *machine.Machine) bool {
		c := m.Record.Condition(ConditionReady)
		return c != nil && c.Status == machine.ConditionTrue
	})
}

func TestAPausedGuestIsLetGoOnOncePerInterval(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		problem string
		since   time.Duration
		want    Plan
	}{
		"one that somebody paused goes on": {want: Plan{Steps: []Step{{Name: StepVMMBoot}}}},
		"one with a problem is tried":      {problem: "full", since: time.Hour, want: Plan{Steps: []Step{{Name: StepGuestResume}}}},
		"and not at once again":            {problem: "full", since: 4 * time.Second, want: Plan{Wait: 6 * time.Second}},
		"whatever the clock does":          {problem: "full", since: -time.Hour, want: Plan{Steps: []Step{{Name: StepGuestResume}}}},
	} {
		v := View{Now: now, Resumed: now.Add(-c.since), VM: vmm.Observation{State: vmm.StatePaused, Problem: c.problem}}
		if got := planPaused(v); got.Wait != c.want.Wait || len(got.Steps) != len(c.want.Steps) || len(got.Steps) > 0 && got.Steps[0] != c.want.Steps[0] {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
