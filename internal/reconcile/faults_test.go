// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process/processtest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// fullStore refuses the changes of records that it is told to, as a store on a full disk does.
type fullStore struct {
	*store.Store
	refuses func(before, after *machine.Record) bool
}

func (s *fullStore) UpdateRecord(ctx context.Context, id string, fn func(*machine.Record) error) (*machine.Machine, error) {
	return s.Store.UpdateRecord(ctx, id, func(rec *machine.Record) error {
		before := rec.Clone()
		if err := fn(rec); err != nil {
			return err
		}
		if s.refuses(&before, rec) {
			return machine.Errorf(machine.Exhausted, "disk full")
		}
		return nil
	})
}

func TestAVMMThatIsGoneIsReapedThoughItsDriverIsGoneToo(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		h := newHost()
		d := newDaemon(t, h)
		d.start(nil)
		d.create(one)
		d.running(one)
		if deleted {
			d.remove(one)
		}
		d.stop()
		h.world.Reboot()
		d.tweak = func(o *Options) { o.Driver = driver{h: h, name: "other"} }
		d.start(nil)
		if !deleted {
			d.until("started by the other driver", one, func(m *machine.Machine) bool {
				return m.Record.State == machine.Running && m.Record.VMM != nil && m.Record.VMM.Driver == "other"
			})
			d.remove(one)
		}
		d.gone(one)
		if left := h.leaks(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestAWishThatChangesWhileAMachineStartsIsHeardBeforeTheVMMIsLaunched(t *testing.T) {
	for name, change := range map[string]func(*daemon){
		"deleted":     func(d *daemon) { d.remove(one) },
		"powered off": func(d *daemon) { d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOff }) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost()
			d := newDaemon(t, h)
			var once sync.Once
			d.start(func(_ context.Context, s StepName, when string) error {
				if s == StepVolumePrepare && when == "before" {
					once.Do(func() { change(d) })
				}
				return nil
			})
			d.create(one)
			d.until("settled", one, func(m *machine.Machine) bool { return m == nil || m.Record.State == machine.Suspended })
			if h.starts != 0 {
				t.Errorf("a VMM was launched for a machine that was %s before", name)
			}
		})
	}
}

// TestAStartThatFailsKeepsSayingWhy has no VMM that can be started, and watches what a client is told meanwhile.
func TestAStartThatFailsKeepsSayingWhy(t *testing.T) {
	t.Parallel()
	h := newHost()
	for range 100 {
		h.world.FailStarts(errors.New("no such program"))
	}
	d := newDaemon(t, h)
	var launches atomic.Int32
	d.told.on = func(reason, text string) {
		if reason == "StepFailed" && strings.Contains(text, "no such program") {
			launches.Add(1)
		}
	}
	d.start(nil)
	watch := d.store.Watch(t.Context(), store.WatchOptions{})
	defer watch.Close()
	d.create(one)
	var reasons []string
	for launches.Load() < 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, m, err := watch.Next(ctx)
		cancel()
		if err == nil && m.Record.Condition(ConditionReady) != nil {
			reasons = append(reasons, ready(m).Reason)
		}
	}
	if slices.Contains(reasons, string(machine.Pending)) || !slices.Contains(reasons, string(StepVMMLaunch)) {
		t.Errorf("the condition read, one after the other: %q", reasons)
	}
}

func TestAGuestThatGoesDownAtOnceIsStartedAgainWithADelay(t *testing.T) {
	h := newHost()
	h.booted = func(g *guest) { g.state = vmm.StateIdle }
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	m := d.until("restarted", one, func(m *machine.Machine) bool { return m.Record.Restarts >= 4 })
	d.stop()
	h.with(t, one, func(g *guest) {
		if g.boots > m.Record.Restarts+2 {
			t.Errorf("%d boots, of which %d count", g.boots, m.Record.Restarts)
		}
	})
}

func TestTheProcessIsRecordedOnceThereIsSpaceAgain(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	var refused atomic.Bool
	d.tweak = func(o *Options) {
		o.Store = &fullStore{Store: d.store, refuses: func(before, after *machine.Record) bool {
			identified := after.VMM != nil && after.VMM.Process != nil && (before.VMM == nil || before.VMM.Process == nil)
			return identified && refused.CompareAndSwap(false, true)
		}}
	}
	d.start(nil)
	d.create(one)
	m := d.running(one)
	if !refused.Load() || m.Record.VMM.Process == nil || h.starts != 1 {
		t.Errorf("refused %t, %d starts, record %+v", refused.Load(), h.starts, m.Record.VMM)
	}
}

func TestAMachineThatHasItsImageWaitsForNone(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	d.running(one)
	if waiting := d.r.ImageWaiters("registry/image:1"); len(waiting) > 0 {
		t.Errorf("these wait for the image: %v", waiting)
	}
	d.images.set(&image.PullingError{Ref: "registry/image:1"})
	d.create(two)
	d.until("waiting", two, func(m *machine.Machine) bool { return m.Record.Condition(ConditionReady) != nil })
	d.remove(two)
	d.gone(two)
	d.until("nobody waits for the image", two, func(*machine.Machine) bool { return len(d.r.ImageWaiters("registry/image:1")) == 0 })
}

func TestTheImageOfASecondVolumeIsWaitedForAsWell(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	const second = "registry/data:1"
	d.images.of = second
	d.images.set(&image.PullingError{Ref: second})
	d.tweak = func(o *Options) { o.MaxBackoff = DefaultMaxBackoff }
	d.start(nil)
	ref, data := "registry/image:1", second
	_, err := d.store.Create(t.Context(), &machine.Machine{ID: one, Desired: machine.Desired{
		Generation: 1, CreatedAt: time.Now(), Power: machine.PowerOn, Resources: machine.Resources{CPUs: 1, MemoryBytes: 1 << 20},
		Volumes: []machine.Volume{
			{Name: "root", LocalDisk: &machine.LocalDisk{Image: &ref}}, {Name: "data", LocalDisk: &machine.LocalDisk{Image: &data}},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	d.until("waiting", one, func(m *machine.Machine) bool {
		return m.Record.Condition(ConditionReady) != nil && ready(m).Reason == "PullingImage"
	})
	if d.told.has("StepFailed") {
		t.Error("that an image is being pulled was told as a failure")
	}
	d.images.set(nil)
	d.r.ImageChanged(second)
	d.running(one)
}

func TestAVMMThatWeKillSinceItsGuestFailedIsNotSaidToHaveBeenKilledByOthers(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	d.running(one)
	h.with(t, one, func(g *guest) { g.state = vmm.StateFailed; h.tell(g, vmm.EventResync) })
	m := d.until("restarted", one, func(m *machine.Machine) bool {
		return m.Record.State == machine.Running && m.Record.Restarts == 1
	})
	if !strings.Contains(m.Record.Exit.Reason, "failed") {
		t.Errorf("reason: %q", m.Record.Exit.Reason)
	}
}

// deaf starts processes that nothing ends, as one is that hangs in the kernel.
type deaf struct{ *processtest.Fake }

func (s deaf) Start(ctx context.Context, spec process.Spec) (process.Process, error) {
	p, err := s.Fake.Start(ctx, spec)
	return deafProcess{p}, err
}

type deafProcess struct{ process.Process }

func TestAProcessThatCannotBeKilledHoldsNoWorker(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.tweak = func(o *Options) {
		o.Workers = 1
		o.Supervisor = deaf{processtest.NewFake(h.world)}
	}
	d.start(nil)
	sup := d.r.o.Supervisor
	defer func() { _ = sup.Close() }()
	d.create(one)
	d.running(one)
	h.with(t, one, func(g *guest) { g.state = vmm.StateFailed; h.tell(g, vmm.EventResync) })
	d.until("kill seen", one, func(*machine.Machine) bool { return d.told.has("VMMKilled") })
	began := time.Now()
	d.create(two)
	d.running(two)
	if took := time.Since(began); took > controlTimeout/2 {
		t.Errorf("another machine waited %s", took)
	}
}

func TestAGenerationThatFailsIsObservedAllTheSame(t *testing.T) {
	h := newHost()
	h.fail("volume", errors.New("broken disk"))
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	d.until("failure shown for what is wanted now", one, func(m *machine.Machine) bool {
		return m.Record.Condition(ConditionReady) != nil && m.Record.ObservedGeneration == m.Desired.Generation
	})
}

func TestAStopThatCannotBeRecordedIsNotAskedForWithoutPause(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.tweak = func(o *Options) {
		o.Store = &fullStore{Store: d.store, refuses: func(_, after *machine.Record) bool {
			return after.VMM != nil && after.VMM.StopAskedAt != nil
		}}
	}
	d.start(nil)
	d.create(one)
	d.running(one)
	h.fail("shutdown", machine.Errorf(machine.Unavailable, "no answer"))
	d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOff })
	asked := func() int {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.asked["shutdown"]
	}
	d.until("asked to stop", one, func(*machine.Machine) bool { return asked() > 0 })
	d.until("another look was taken", one, func(*machine.Machine) bool { return d.r.queue.Len() > 0 || asked() > 2 })
	if n := asked(); n > 2 {
		t.Errorf("asked %d times", n)
	}
}

func TestAVMMOfAnEarlierLaunchThatAppearsLateIsTakenUp(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	h.world.FailStarts(context.DeadlineExceeded)
	d.start(nil)
	d.create(one)
	late := d.until("launch failed", one, func(m *machine.Machine) bool { return m.Record.VMM != nil && d.told.has("StepFailed") })
	marker := late.Record.VMM.Marker
	sup := processtest.NewFake(h.world)
	t.Cleanup(func() { _ = sup.Close() })
	// systemd has come to the start that was given up; the machine has been through another launch since.
	if _, err := sup.Start(t.Context(), process.Spec{Name: "late", Argv: []string{"vmm"}, Marker: marker[:len(marker)-1] + "x"}); err != nil {
		t.Fatal(err)
	}
	d.running(one)
	if n := len(h.world.Living()); n != 1 {
		t.Errorf("%d VMMs of one machine", n)
	}
	d.remove(one)
	d.gone(one)
	if left := h.leaks(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestCouldNotAskIsNotGoneWhenDeleting deletes a machine of whose process nothing can be learnt.
func TestCouldNotAskIsNotGoneWhenDeleting(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	d.running(one)
	d.stop()
	h.world.FailAdopt(errors.New("permission denied"))
	d.start(nil)
	d.remove(one)
	d.until("failure shown", one, func(m *machine.Machine) bool {
		return m != nil && m.Desired.Deleting() && ready(m).Reason == "observe"
	})
	if len(h.world.Living()) != 1 || len(h.volumes) != 1 || len(h.nics) != 1 {
		t.Errorf("acted without knowing: %d processes, %d volumes, %d interfaces", len(h.world.Living()), len(h.volumes), len(h.nics))
	}
	h.world.FailAdopt(nil)
	d.gone(one)
}

func TestADeletionDoesNotWaitForACopy(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	copying := make(chan struct{})
	var once sync.Once
	d.start(func(ctx context.Context, s StepName, when string) error {
		if s != StepVolumePrepare || when != "before" {
			return nil
		}
		once.Do(func() { close(copying) })
		<-ctx.Done() // as a copy of many GiB would
		return ctx.Err()
	})
	d.create(one)
	<-copying
	d.remove(one)
	d.gone(one)
	if d.told.has("StepFailed") {
		t.Error("the end of the copy was told as a failure")
	}
}

func TestAMachineGoesOverToTheNewHypervisorWhenItsGuestGoesDown(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	d.create(one)
	d.running(one)
	d.stop()
	d.tweak = func(o *Options) {
		o.Driver = driver{h: h, name: "other"}
		o.Drivers = map[string]vmm.Driver{"imaginary": driver{h: h}}
	}
	d.start(nil)
	d.until("adopted", one, func(m *machine.Machine) bool {
		return m.Record.State == machine.Running && d.r.session(one) != nil && d.r.session(one).connected() != nil
	})
	if h.starts != 1 {
		t.Error("a running guest was disturbed")
	}
	h.with(t, one, func(g *guest) { g.state = vmm.StateIdle; h.tell(g, vmm.EventGuestStopped) })
	d.until("running on the other one", one, func(m *machine.Machine) bool {
		return m.Record.State == machine.Running && m.Record.VMM != nil && m.Record.VMM.Driver == "other"
	})
	if n := len(h.world.Living()); n != 1 {
		t.Errorf("%d VMMs", n)
	}
}

func TestAnInterfaceIsRemovedByThePluginThatMadeIt(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		h := newHost()
		d := newDaemon(t, h)
		d.start(nil)
		d.create(one)
		d.running(one)
		d.stop()
		d.tweak = func(o *Options) {
			o.Network = nics{h: h, name: "other"}
			o.Networks = map[string]network.Plugin{"imaginary": nics{h: h}}
		}
		if restarted {
			h.world.Reboot()
		}
		d.start(nil)
		if restarted {
			d.until("interface made anew", one, func(m *machine.Machine) bool {
				if n := m.Record.NICs["primary"]; n.Handle == "" {
					t.Errorf("the handle was cleared: %+v", n)
				}
				return m.Record.State == machine.Running && m.Record.NICs["primary"].Plugin == "other" && h.starts == 2
			})
		}
		d.remove(one)
		d.gone(one)
		if left := h.leaks(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestAVMMThatWasAskedToEndIsNotAskedHowItIs(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	inspected := func() int {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.asked["inspect"]
	}
	var before atomic.Int64
	d.start(func(_ context.Context, s StepName, when string) error {
		if s == StepVMMStop && when == "after" {
			before.Store(int64(inspected()))
		}
		return nil
	})
	d.create(one)
	d.running(one)
	h.fail("shutdown", machine.Errorf(machine.Unavailable, "no answer"))
	d.remove(one)
	d.until("shown", one, func(m *machine.Machine) bool { return m.Record.State == machine.Terminating && before.Load() > 0 })
	if n := inspected() - int(before.Load()); n > 0 {
		t.Errorf("asked %d times", n)
	}
}
