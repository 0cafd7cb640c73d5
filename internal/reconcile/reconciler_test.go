// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	one = "11111111-1111-4111-8111-111111111111"
	two = "22222222-2222-4222-8222-222222222222"
)

func TestAMachineIsStartedAndDeletedWithoutALeak(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	m := d.running(one)
	if v := m.Record.Volumes["root"]; !v.Attached || v.Handle == "" {
		t.Errorf("volume: %+v", v)
	}
	if n := m.Record.NICs["primary"]; !n.Attached || n.Handle == "" {
		t.Errorf("interface: %+v", n)
	}
	h.with(t, one, func(g *guest) {
		if g.boots != 1 || g.cfg.Ignition == nil || g.cfg.Boot.Kernel != "/kernel" {
			t.Errorf("guest: %+v", g)
		}
	})
	d.remove(one)
	d.gone(one)
	if left := h.leaks(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := os.Stat(d.r.o.machineDir(one)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("machine directory: %v", err)
	}
}

func TestADaemonThatComesBackAdoptsTheSameProcess(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	pid := d.running(one).Record.VMM.Process.PID
	d.stop()
	d.start(nil)
	d.running(one)
	h.with(t, one, func(g *guest) {
		if g.pid != pid || g.boots != 1 {
			t.Errorf("pid %d became %d, %d boots", pid, g.pid, g.boots)
		}
	})
}

// TestAKillAtAnyStepConverges stops the daemon dead in the middle of each step, once while a machine starts and
// once while it is deleted, and lets another life finish the work.
func TestAKillAtAnyStepConverges(t *testing.T) {
	for _, step := range StepNames() {
		for _, when := range []string{"before", "intended", "spawned", "after"} {
			if step != StepVMMLaunch && (when == "intended" || when == "spawned") {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", step, when), func(t *testing.T) {
				t.Parallel()
				killAt(t, step, when)
			})
		}
	}
}

func killAt(t *testing.T, step StepName, when string) {
	h := newHost()
	d := newDaemon(t, h)
	d.tweak = func(o *Options) {
		o.DeleteGrace, o.PowerOffGrace = time.Minute, time.Minute
		o.GuestShutdown = func(context.Context, vmm.VM) error { return errors.New("no agent") }
		o.KeepDetached = -1
	}
	h.lets = func(string) unplug { return late }
	reached := make(chan struct{})
	var once atomic.Bool
	d.start(func(ctx context.Context, s StepName, w string) error {
		if s == step && w == when && once.CompareAndSwap(false, true) {
			close(reached)
			<-ctx.Done() // as far as it got: what follows never happens in this life
			return ctx.Err()
		}
		return nil
	})
	d.create(one)
	drive(t, d, h, reached)
	d.stop()
	h.mu.Lock()
	h.obeys = true
	h.mu.Unlock()
	if n := len(h.world.Living()); n > 1 {
		t.Fatalf("%d VMMs of one machine", n)
	}
	d.start(nil)
	if m, err := d.store.Get(one); err == nil && !m.Desired.Deleting() {
		if m.Desired.Power == machine.PowerOff {
			d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOn })
		}
		d.running(one)
		if n := len(h.world.Living()); n != 1 {
			t.Fatalf("%d VMMs run", n)
		}
		d.attached(one)
		d.remove(one)
	}
	d.gone(one)
	if left := h.leaks(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// drive leads a machine through a crash, a stop that hangs and a deletion until the step is reached.
func drive(t *testing.T, d *daemon, h *host, reached chan struct{}) {
	t.Helper()
	at := func() bool {
		select {
		case <-reached:
			return true
		default:
			return false
		}
	}
	settle := func(what string, ok func(*machine.Machine) bool) bool {
		d.until(what, one, func(m *machine.Machine) bool { return at() || ok(m) })
		return at()
	}
	up := func(m *machine.Machine) bool {
		return m != nil && m.Record.State == machine.Running && len(h.world.Living()) == 1
	}
	if settle("running", up) {
		return
	}
	for _, change := range []func(*machine.Desired){
		func(want *machine.Desired) {
			want.Volumes = append(want.Volumes, machine.Volume{Name: "data", LocalDisk: &machine.LocalDisk{SizeBytes: 2 << 20}})
			want.NICs = append(want.NICs, machine.NetworkInterface{Name: "extra"})
		},
		func(want *machine.Desired) { want.Volumes[1].LocalDisk.SizeBytes = 4 << 20 },
		func(want *machine.Desired) { want.Volumes, want.NICs = want.Volumes[:1], want.NICs[:1] },
	} {
		d.want(one, change)
		if settle("devices as wanted", func(m *machine.Machine) bool { return up(m) && d.asWanted(m) }) {
			return
		}
	}
	h.with(t, one, func(g *guest) {
		g.state, g.problem, g.heals = vmm.StatePaused, "full", true
		h.tell(g, vmm.EventProblem)
	})
	if settle("let go on after it was paused", func(*machine.Machine) bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.guests[one].state == vmm.StateRunning
	}) {
		return
	}
	h.with(t, one, func(g *guest) { g.state = vmm.StateIdle; h.tell(g, vmm.EventGuestStopped) })
	if settle("restarted after the guest stopped", func(m *machine.Machine) bool { return up(m) && m.Record.Restarts == 1 }) {
		return
	}
	h.with(t, one, func(g *guest) { g.state = vmm.StateFailed; h.tell(g, vmm.EventResync) })
	if settle("restarted after the guest failed", func(m *machine.Machine) bool { return up(m) && m.Record.Restarts == 2 }) {
		return
	}
	d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOff }) // the guest does not obey
	if settle("button pressed", func(m *machine.Machine) bool { return m.Record.Shutdown != nil && m.Record.Shutdown.ButtonAt != nil }) {
		return
	}
	d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOn })
	if settle("shutdown forgotten", func(m *machine.Machine) bool { return m.Record.Shutdown == nil && up(m) }) {
		return
	}
	h.mu.Lock()
	h.obeys = true
	h.mu.Unlock()
	d.remove(one)
	if settle("gone", func(m *machine.Machine) bool { return m == nil }) {
		return
	}
	select {
	case <-reached: // what follows the removal of the record comes after the machine is gone
	case <-time.After(patience):
		t.Fatal("the step was never reached")
	}
}

func TestPowerOffAndOnAgain(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	d.running(one)
	d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOff })
	d.until("suspended", one, func(m *machine.Machine) bool { return m.Record.State == machine.Suspended && m.Record.VMM == nil })
	if n := len(h.world.Living()); n != 0 {
		t.Fatalf("%d processes of a machine that is off", n)
	}
	if m, _ := d.store.Get(one); m.Record.Exit != nil || m.Record.Restarts != 0 {
		t.Errorf("a stop that was asked for counts as a crash: %+v", m.Record)
	}
	d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOn })
	d.running(one)
	if h.volumes[one+"/root"] == 0 {
		t.Error("the volume is gone")
	}
}

func TestAVMMThatIsKilledIsStartedAgainAndSaysWhy(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	m := d.running(one)
	log := filepath.Join(d.r.o.machineDir(one), vmmOutput)
	if err := os.WriteFile(log, []byte("first\nsecond\nthird\nassertion failed in virtio\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	h.world.Kill(m.Record.VMM.Process.PID, syscall.SIGKILL)
	m = d.until("restarted", one, func(m *machine.Machine) bool {
		return m.Record.State == machine.Running && m.Record.Restarts == 1
	})
	const last = "second | third | assertion failed in virtio"
	if m.Record.Exit == nil || m.Record.Exit.Reason != "SIGKILL" || m.Record.Exit.Output != last {
		t.Errorf("exit: %+v", m.Record.Exit)
	}
	if !slices.ContainsFunc(d.told.texts, func(text string) bool { return strings.Contains(text, last) }) {
		t.Errorf("no event has the last lines: %v", d.told.texts)
	}
	if !d.told.has("VMMEnded") {
		t.Error("no event tells of it")
	}
}

func TestAStopThatHangsIsKilledOnlyAfterItWasAsked(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	m := d.running(one)
	h.fail("shutdown", machine.Errorf(machine.Unavailable, "no answer"))
	d.remove(one)
	d.until("stop asked", one, func(m *machine.Machine) bool { return m.Record.VMM.StopAskedAt != nil })
	h.mu.Lock()
	if h.living(one) == nil {
		t.Error("killed at once")
	}
	h.mu.Unlock()
	d.stop()
	view := View{Machine: m, Process: ProcessAlive, Now: time.Now()}
	asked := view.Now.Add(-stopPatience)
	view.Machine = m.Clone()
	view.Machine.Desired.DeletedAt = &asked
	view.Machine.Record.VMM.StopAskedAt = &asked
	if plan := MakePlan(view); len(plan.Steps) != 1 || plan.Steps[0].Name != StepVMMKill {
		t.Errorf("plan after %s: %+v", stopPatience, plan)
	}
}

// TestCouldNotAskIsNotGone makes every question fail and sees that nothing is started, stopped or removed.
func TestCouldNotAskIsNotGone(t *testing.T) {
	for name, fail := range map[string]func(*host){
		"adopt":    func(h *host) { h.world.FailAdopt(errors.New("permission denied")) },
		"connect":  func(h *host) { h.fail("connect", errors.New("refused")) },
		"inspect":  func(h *host) { h.fail("inspect", errors.New("timeout")) },
		"identity": func(h *host) { h.mu.Lock(); h.identity = two; h.mu.Unlock() },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost()
			d := newDaemon(t, h)
			d.start(nil)
			d.create(one)
			m := d.running(one)
			d.stop()
			fail(h)
			d.start(nil)
			after := d.until("failure shown", one, func(m *machine.Machine) bool {
				return m.Record.Condition(ConditionReady) != nil && ready(m).Reason == "observe"
			})
			if after.Record.State != machine.Running || h.starts != 1 || len(h.world.Living()) != 1 || len(h.volumes) != 1 {
				t.Errorf("acted without knowing: state %s, %d starts, %d processes, %d volumes",
					after.Record.State, h.starts, len(h.world.Living()), len(h.volumes))
			}
			if after.Record.VMM == nil || after.Record.VMM.Process.PID != m.Record.VMM.Process.PID {
				t.Error("the process was forgotten")
			}
		})
	}
}

func TestAMachineWaitsForItsImageAndIsWokenByIt(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.images.set(&image.PullingError{Ref: "registry/image:1"})
	d.start(nil)
	d.create(one)
	d.until("waiting", one, func(m *machine.Machine) bool {
		return m.Record.Condition(ConditionReady) != nil && ready(m).Reason == "PullingImage"
	})
	d.images.set(&image.PullFailedError{Ref: "registry/image:1", Err: errors.New("no such host"), RetryAt: time.Now().Add(time.Hour)})
	d.r.ImageChanged("registry/image:1")
	m := d.until("failed", one, func(m *machine.Machine) bool { return ready(m).Reason == "PullImageFailed" })
	if !strings.Contains(ready(m).Message, "no such host") {
		t.Errorf("condition: %+v", m.Record.Conditions[0])
	}
	d.images.set(nil)
	d.r.ImageChanged("registry/image:1")
	d.running(one)
}

func TestOneStuckMachineDoesNotHoldAnother(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	stuck, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d.start(func(ctx context.Context, s StepName, when string) error {
		hang := false
		if s == StepVolumePrepare && when == "before" {
			once.Do(func() { hang = true })
		}
		if hang {
			close(stuck)
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return ctx.Err()
	})
	d.create(one)
	<-stuck
	d.create(two)
	d.running(two)
	if m, _ := d.store.Get(one); m.Record.State == machine.Running {
		t.Error("the machine was not stuck")
	}
	close(release)
	d.running(one)
}

func TestAPanicInOneStepIsAFailureOfThatMachine(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	var thrown atomic.Bool
	d.start(func(_ context.Context, s StepName, when string) error {
		if s == StepNICPrepare && when == "before" && thrown.CompareAndSwap(false, true) {
			panic("boom")
		}
		return nil
	})
	d.create(one)
	d.running(one)
	if !thrown.Load() {
		t.Error("the panic was never thrown")
	}
}

func TestAHostRebootStartsTheMachinesAgain(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	d.running(one)
	d.stop()
	h.world.Reboot()
	d.start(nil)
	d.until("restarted", one, func(m *machine.Machine) bool {
		return m.Record.State == machine.Running && h.read(func() int { return h.starts }) == 2
	})
	if h.read(func() int { return h.volumes[one+"/root"] }) == 0 {
		t.Error("the volume was not kept")
	}
}
