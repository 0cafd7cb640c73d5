// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

// TestWhateverHappensAMachineHasOneVMMAndComesToWhatIsWanted does to a machine, its host and the daemon what may
// happen to them, in an order drawn by chance. The imaginary volumes panic when they are deleted under a living VMM.
func TestWhateverHappensAMachineHasOneVMMAndComesToWhatIsWanted(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			newStorm(t, seed).run()
		})
	}
}

type storm struct {
	t       *testing.T
	h       *host
	d       *daemon
	draw    *rand.Rand
	full    atomic.Bool
	history []string
}

func newStorm(t *testing.T, seed uint64) *storm {
	s := &storm{t: t, h: newHost(), draw: rand.New(rand.NewPCG(seed, 1))}
	begun := s.h.onStart
	s.h.world.OnStart(func(spec process.Spec, id process.Identity) {
		for pid, other := range s.h.world.Living() {
			if pid != id.PID && strings.Split(other.Marker, "/")[1] == strings.Split(spec.Marker, "/")[1] {
				t.Errorf("a second VMM of one machine is started: %s beside %s", spec.Marker, other.Marker)
			}
		}
		begun(spec, id)
	})
	s.d = newDaemon(t, s.h)
	s.d.tweak = func(o *Options) {
		o.KeepDetached = time.Duration(s.draw.IntN(30)) * time.Millisecond
		o.Store = &fullStore{Store: s.d.store, refuses: func(_, _ *machine.Record) bool { return s.full.Load() }}
	}
	return s
}

func (s *storm) run() {
	s.d.start(nil)
	s.d.create(one)
	for range 80 {
		s.strike()
		time.Sleep(time.Duration(s.draw.IntN(12)) * time.Millisecond)
	}
	s.calm()
	s.d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOn })
	s.guest(func(g *guest) { s.h.reset(g) })
	s.d.attached(one)
	if n := len(s.h.world.Living()); n != 1 {
		s.t.Errorf("%d VMMs; history: %v", n, s.history)
	}
	if s.h.volumes[one+"/root"] == 0 {
		s.t.Errorf("the volume is gone; history: %v", s.history)
	}
	s.d.remove(one)
	s.d.gone(one)
	if left := s.h.leaks(); len(left) > 0 || len(s.h.held) > 0 {
		s.t.Errorf("left behind: %v, held: %v; history: %v", left, s.h.held, s.history)
	}
}

func stormCalls() []string {
	return []string{"connect", "inspect", "create", "boot", "volume", "attach", "detach", "resize", "volume.release", "apply"}
}

// strike lets one thing happen.
func (s *storm) strike() {
	calls := stormCalls()
	call := calls[s.draw.IntN(len(calls))]
	scripted := errors.New("scripted")
	all := []struct {
		name string
		do   func()
	}{
		{"power on", func() { s.d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOn }) }},
		{"power off", func() { s.d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOff }) }},
		{"crash", func() { s.guest(func(g *guest) { defer s.h.world.Kill(g.pid, syscall.SIGSEGV) }) }},
		{"guest stops", func() { s.guest(func(g *guest) { g.state = vmm.StateIdle; s.h.tell(g, vmm.EventGuestStopped) }) }},
		{"guest fails", func() { s.guest(func(g *guest) { g.state = vmm.StateFailed; s.h.tell(g, vmm.EventResync) }) }},
		{"daemon restarts", func() { s.d.stop(); s.d.start(nil) }},
		{"comes up", func() {
			s.calm()
			s.d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOn })
			s.guest(func(g *guest) { s.h.reset(g) })
			s.d.attached(one)
		}},
		{"host reboots", func() { s.d.stop(); s.h.world.Reboot(); s.d.start(nil) }},
		{"fail " + call, func() { s.h.fail(call, scripted) }},
		{"mend " + call, func() { s.h.fail(call, nil) }},
		{"daemon restarts and cannot adopt", func() { s.d.stop(); s.h.world.FailAdopt(scripted); s.d.start(nil) }},
		{"daemon restarts and cannot find", func() { s.d.stop(); s.h.world.FailFind(scripted); s.d.start(nil) }},
		{"start fails", func() { s.h.world.FailStarts(scripted) }},
		{"disk full", func() { s.full.Store(true) }},
		{"disk not full", func() { s.full.Store(false) }},
		{"calm", s.calm},
		{"volume comes", func() {
			size := int64(1+s.draw.IntN(6)) << 20
			v := []machine.Volume{near("near", size), far("far", fmt.Sprint("h", s.draw.IntN(3)))}[s.draw.IntN(2)]
			s.d.want(one, change(v))
		}},
		{"volume goes", func() { s.d.want(one, drop([]string{"near", "far"}[s.draw.IntN(2)])) }},
		{"volume changes its kind", func() { s.d.want(one, change(far("near", "other"))) }},
		{"interface comes", func() {
			n := machine.NetworkInterface{Name: "extra", NetworkID: fmt.Sprint("net", s.draw.IntN(2)), IPs: []string{fmt.Sprint(s.draw.IntN(3))}}
			s.d.want(one, func(want *machine.Desired) { want.NICs = append(want.NICs[:1:1], n) })
		}},
		{"interface goes", func() { s.d.want(one, func(want *machine.Desired) { want.NICs = want.NICs[:1:1] }) }},
		{"guest resets", func() { s.guest(func(g *guest) { s.h.reset(g) }) }},
		{"guests let go otherwise", func() {
			how := unplug(s.draw.IntN(3))
			s.h.mu.Lock()
			s.h.lets = func(string) unplug { return how }
			s.h.mu.Unlock()
		}},
	}
	one := all[s.draw.IntN(len(all))]
	s.history = append(s.history, one.name)
	one.do()
}

func (s *storm) guest(fn func(*guest)) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	if g := s.h.living(one); g != nil {
		fn(g)
	}
}

// calm ends all that goes wrong.
func (s *storm) calm() {
	for _, call := range stormCalls() {
		s.h.fail(call, nil)
	}
	s.h.mu.Lock()
	s.h.lets = func(string) unplug { return late }
	s.h.mu.Unlock()
	s.h.world.FailAdopt(nil)
	s.h.world.FailFind(nil)
	s.full.Store(false)
}
