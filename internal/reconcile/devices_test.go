// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// rig is a machine that runs, on a host of its own.
func running(t *testing.T, prepare func(*host, *daemon)) (*host, *daemon) {
	t.Helper()
	h := newHost()
	d := newDaemon(t, h)
	if prepare != nil {
		prepare(h, d)
	}
	d.start(nil)
	d.create(one)
	d.running(one)
	return h, d
}

func near(name string, bytes int64) machine.Volume {
	return machine.Volume{Name: name, LocalDisk: &machine.LocalDisk{SizeBytes: bytes}}
}

func far(name, handle string) machine.Volume {
	return machine.Volume{Name: name, Connection: &machine.Connection{Driver: "far", Handle: handle}}
}

func add(v ...machine.Volume) func(*machine.Desired) {
	return func(d *machine.Desired) { d.Volumes = append(d.Volumes, v...) }
}

func drop(name string) func(*machine.Desired) {
	return func(d *machine.Desired) {
		d.Volumes = slices.DeleteFunc(d.Volumes, func(v machine.Volume) bool { return v.Name == name })
	}
}

func change(v machine.Volume) func(*machine.Desired) {
	return func(d *machine.Desired) { drop(v.Name)(d); add(v)(d) }
}

// count asks the host for something under its lock.
func (h *host) read(fn func() int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fn()
}

func (d *daemon) finish() {
	d.t.Helper()
	d.remove(one)
	d.gone(one)
	if left := d.h.leaks(); len(left) > 0 || len(d.h.held) > 0 {
		d.t.Errorf("left behind: %v, held: %v", left, d.h.held)
	}
}

func TestAVolumeComesToARunningGuestAndGoesAgain(t *testing.T) {
	h, d := running(t, nil)
	d.want(one, add(near("data", 2<<20), far("far", "x")))
	d.attached(one)
	d.want(one, drop("far"))
	d.attached(one)
	if m, _ := d.store.Get(one); len(m.Record.Volumes) != 2 || h.held[one+"/far"] {
		t.Errorf("what is kept elsewhere was not let go of: %+v", m.Record.Volumes)
	}
	for _, reason := range []string{"VolumeAttached", "VolumeDetached"} {
		if !d.told.has(reason) {
			t.Errorf("no event %s", reason)
		}
	}
	if n := h.starts; n != 1 {
		t.Errorf("%d VMMs were started", n)
	}
	d.finish()
}

func TestAGuestThatDoesNotLetGoKeepsItsVolumeUntilItIsReset(t *testing.T) {
	h, d := running(t, func(h *host, _ *daemon) { h.lets = func(string) unplug { return refuses } })
	d.want(one, add(far("data", "x")))
	d.attached(one)
	d.want(one, drop("data"))
	asked := func() int { return h.read(func() int { return h.asked["detach"] }) }
	m := d.until("asked again and again", one, func(m *machine.Machine) bool {
		c := condition(m, ConditionVolumes)
		return asked() >= 4 && c.Reason == ReasonDetachPending && strings.Contains(c.Message, "data") && d.told.has(ReasonDetachPending)
	})
	rec := m.Record.Volumes["data"]
	if rec.Attached || !rec.Given || !rec.IsLeaving() || !h.held[one+"/data"] || m.Record.State != machine.Running {
		t.Errorf("record: %+v", rec)
	}
	first := rec.AskedAt
	d.stop() // the intent outlives the daemon
	d.start(nil)
	before := asked()
	m = d.until("asked by the next daemon", one, func(*machine.Machine) bool { return asked() > before })
	if since := m.Record.Volumes["data"].AskedAt; !since.Equal(first) {
		t.Errorf("asked since %s, then since %s", first, since)
	}
	h.with(t, one, func(g *guest) { h.reset(g) })
	d.attached(one)
	if h.read(func() int { return len(h.held) }) != 1 {
		t.Errorf("held: %v", h.held)
	}
	d.finish()
}

func TestAGuestThatDoesNotLetGoDoesSoWithItsVMM(t *testing.T) {
	for name, end := range map[string]func(*daemon){
		"power off": func(d *daemon) {
			d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOff })
			d.until("off", one, func(m *machine.Machine) bool { return m.Record.State == machine.Suspended })
			d.until("released while off", one, func(m *machine.Machine) bool { _, ok := m.Record.Volumes["data"]; return !ok })
			d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOn })
		},
		"crash":       func(d *daemon) { d.h.with(d.t, one, func(g *guest) { defer d.h.world.Kill(g.pid, 9) }) },
		"host reboot": func(d *daemon) { d.stop(); d.h.world.Reboot(); d.start(nil) },
		"guest goes off": func(d *daemon) {
			d.h.with(d.t, one, func(g *guest) { g.state = vmm.StateIdle; d.h.tell(g, vmm.EventGuestStopped) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, d := running(t, func(h *host, _ *daemon) { h.lets = func(string) unplug { return refuses } })
			d.want(one, add(far("data", "x")))
			d.attached(one)
			d.want(one, drop("data"))
			d.until("asked", one, func(m *machine.Machine) bool { return !m.Record.Volumes["data"].AskedAt.IsZero() })
			end(d)
			d.attached(one)
			if n := h.starts; n != 2 {
				t.Errorf("%d VMMs were started", n)
			}
			d.finish()
		})
	}
}

func TestAnotherMediumOfTheSameNameTakesThePlaceOfTheFirst(t *testing.T) {
	for _, how := range []unplug{atOnce, late} {
		h, d := running(t, func(h *host, _ *daemon) { h.lets = func(string) unplug { return how } })
		d.want(one, add(far("data", "x")))
		d.attached(one)
		d.want(one, change(far("data", "y")))
		d.attached(one)
		h.with(t, one, func(g *guest) {
			if path := g.cfg.Disks[g.disk("disk-data")].Path; path != "/far/y" {
				t.Errorf("the guest has %s", path)
			}
		})
		d.want(one, change(near("data", 1<<20))) // and of another kind
		d.attached(one)
		d.finish()
	}
}

func TestAWishTakenBackWhileTheGuestStillHasTheVolumeEndsAttached(t *testing.T) {
	h, d := running(t, func(h *host, _ *daemon) { h.lets = func(string) unplug { return refuses } })
	d.want(one, add(near("data", 1<<20)))
	d.attached(one)
	d.want(one, drop("data"))
	d.until("asked", one, func(m *machine.Machine) bool { return !m.Record.Volumes["data"].AskedAt.IsZero() })
	d.want(one, add(near("data", 1<<20)))
	d.attached(one) // it still has it, and the intent is gone
	number := h.data[one+"/data"]
	h.with(t, one, func(g *guest) { h.reset(g) }) // what it was asked for before comes true now
	d.until("attached again", one, func(m *machine.Machine) bool {
		return d.asWanted(m) && h.read(func() int { return h.asked["attach"] }) == 2
	})
	if h.data[one+"/data"] != number {
		t.Error("the data were lost")
	}
	d.finish()
}

func TestTheDataOfALocalDiskComeBackWithIt(t *testing.T) {
	h, d := running(t, nil)
	d.want(one, add(near("data", 1<<20)))
	d.attached(one)
	number := h.data[one+"/data"]
	d.want(one, drop("data"))
	d.until("retired", one, func(m *machine.Machine) bool { return !m.Record.Volumes["data"].RetiredAt.IsZero() && d.asWanted(m) })
	d.want(one, add(near("data", 4<<20))) // as the poollet does for another size
	d.attached(one)
	if h.data[one+"/data"] != number {
		t.Error("the data were lost")
	}
	image := "registry/other:1"
	d.want(one, change(machine.Volume{Name: "data", LocalDisk: &machine.LocalDisk{Image: &image}}))
	d.attached(one)
	if h.data[one+"/data"] == number {
		t.Error("the data of another image were taken for the new ones")
	}
	d.finish()
}

func TestTheDataOfADetachedDiskGoAfterTheirTime(t *testing.T) {
	for _, off := range []bool{false, true} {
		h, d := running(t, func(_ *host, d *daemon) { d.tweak = func(o *Options) { o.KeepDetached = 300 * time.Millisecond } })
		d.want(one, add(near("data", 1<<20)))
		d.attached(one)
		if off {
			d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOff })
			d.until("off", one, func(m *machine.Machine) bool { return m.Record.State == machine.Suspended })
		}
		d.want(one, drop("data"))
		began := time.Now()
		d.until("retired", one, func(m *machine.Machine) bool { return !m.Record.Volumes["data"].RetiredAt.IsZero() })
		d.until("gone", one, func(m *machine.Machine) bool { _, ok := m.Record.Volumes["data"]; return !ok })
		if kept := time.Since(began); kept < 300*time.Millisecond || h.read(func() int { return h.volumes[one+"/data"] }) != 0 {
			t.Errorf("kept %s", kept)
		}
		d.want(one, add(near("data", 1<<20))) // begins anew
		d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOn })
		d.attached(one)
		d.finish()
	}
}

func TestTheDiskThatAGuestRunsFromIsOnlyChangedWhenItIsStarted(t *testing.T) {
	h, d := running(t, func(h *host, _ *daemon) {
		h.lets = func(string) unplug { t.Error("asked for the boot disk"); return atOnce }
	})
	number, other := h.data[one+"/root"], "registry/image:2"
	root := machine.Volume{Name: "root", Device: "oda", LocalDisk: &machine.LocalDisk{Image: &other}}
	d.want(one, change(root))
	d.until("says so", one, func(m *machine.Machine) bool {
		c := condition(m, ConditionVolumes)
		return c.Reason == ReasonRestartNeeded && strings.Contains(c.Message, "root") && !m.Record.Volumes["root"].Attached
	})
	if h.data[one+"/root"] != number || h.starts != 1 {
		t.Error("the disk was touched")
	}
	d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOff })
	d.until("off", one, func(m *machine.Machine) bool { return m.Record.State == machine.Suspended })
	d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOn })
	d.attached(one)
	if h.data[one+"/root"] == number {
		t.Error("the guest was started from the old image")
	}
	image := "registry/image:2"
	d.want(one, change(machine.Volume{Name: "root", Device: "oda", LocalDisk: &machine.LocalDisk{Image: &image, SizeBytes: 8 << 20}}))
	d.attached(one) // it grows as any other
	d.finish()
}

func TestVolumesGrowUnderTheGuestAndWithoutIt(t *testing.T) {
	for _, tells := range []bool{false, true} {
		h, d := running(t, func(h *host, _ *daemon) { h.tells = tells })
		d.want(one, add(near("data", 1<<20)))
		d.attached(one)
		d.want(one, change(near("data", 8<<20)))
		m := d.attached(one)
		if rec := m.Record.Volumes["data"]; rec.GuestBytes != 8<<20 || h.asked["resize"] != 1 {
			t.Errorf("record %+v, told %d times", rec, h.asked["resize"])
		}
		if !d.told.has("VolumeResized") {
			t.Error("no event")
		}
		d.want(one, change(near("data", 4<<20))) // never smaller
		d.attached(one)
		d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOff })
		d.until("off", one, func(m *machine.Machine) bool { return m.Record.State == machine.Suspended })
		d.want(one, change(near("data", 16<<20)))
		d.until("grown while off", one, func(m *machine.Machine) bool { return m.Record.Volumes["data"].SizeBytes == 16<<20 })
		d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOn })
		d.attached(one)
		d.finish()
	}
}

func TestAGuestThatCannotBeToldOfASizeSaysSoOrGetsItsDiskAnew(t *testing.T) {
	for _, replug := range []bool{false, true} {
		h, d := running(t, func(_ *host, d *daemon) { d.tweak = func(o *Options) { o.ResizeByReplug = replug } })
		h.fail("resize", machine.Errorf(machine.Unimplemented, "the path cannot tell"))
		d.want(one, add(near("data", 1<<20)))
		d.attached(one)
		number := h.data[one+"/data"]
		d.want(one, change(near("data", 8<<20)))
		if !replug {
			d.until("says so", one, func(m *machine.Machine) bool { return condition(m, ConditionVolumes).Reason == "RebootNeeded" })
			h.with(t, one, func(g *guest) { defer h.world.Kill(g.pid, 9) })
		}
		d.attached(one)
		if h.data[one+"/data"] != number || (h.starts == 1) != replug {
			t.Errorf("data %d, %d starts", h.data[one+"/data"], h.starts)
		}
		image := "registry/image:1"
		d.want(one, change(machine.Volume{Name: "root", Device: "oda", LocalDisk: &machine.LocalDisk{Image: &image, SizeBytes: 8 << 20}}))
		d.until("the boot disk is never taken out", one, func(m *machine.Machine) bool { return condition(m, ConditionVolumes).Reason == "RebootNeeded" })
		d.finish()
	}
}

func TestOneDeviceThatFailsHoldsNothingElse(t *testing.T) {
	h, d := running(t, nil)
	h.fail("volume bad", errors.New("broken disk"))
	d.want(one, add(near("bad", 1<<20), near("good", 1<<20)))
	m := d.until("the good one is attached", one, func(m *machine.Machine) bool {
		return m.Record.Volumes["good"].Attached && condition(m, ConditionVolumes).Reason == "volume.prepare"
	})
	if ready(m).Status != machine.ConditionTrue || m.Record.ObservedGeneration != m.Desired.Generation {
		t.Errorf("machine: %+v", m.Record)
	}
	d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOff })
	d.until("it can be turned off", one, func(m *machine.Machine) bool { return m.Record.State == machine.Suspended })
	d.want(one, drop("bad"))
	d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOn })
	d.attached(one)
	h.fail("volume bad", nil)
	d.want(one, add(near("bad", 1<<20)))
	d.attached(one)
	d.finish()
}

func TestADeviceWithoutASlotWaitsForOne(t *testing.T) {
	_, d := running(t, func(h *host, _ *daemon) { h.slots = 3 })
	d.want(one, add(near("a", 1<<20), near("b", 1<<20)))
	d.until("full", one, func(m *machine.Machine) bool {
		c := condition(m, ConditionVolumes)
		return c.Reason == "NoFreeSlot" && strings.Contains(c.Message, "3 slots") && m.Record.Volumes["a"].Attached
	})
	d.want(one, drop("a"))
	d.attached(one)
	d.finish()
}

func TestAVMMThatCannotChangeItsDevicesGetsThemWhenItIsStarted(t *testing.T) {
	for _, plain := range []bool{true, false} { // one that has not the ability, and one that has not what it takes
		_, d := running(t, func(h *host, _ *daemon) {
			if h.plain = plain; !plain {
				h.fail("attach", machine.Errorf(machine.Unimplemented, "started without a controller"))
			}
		})
		d.want(one, add(near("data", 1<<20)))
		d.want(one, func(want *machine.Desired) { want.NICs = append(want.NICs, machine.NetworkInterface{Name: "extra"}) })
		d.until("says so", one, func(m *machine.Machine) bool {
			return condition(m, ConditionVolumes).Reason == ReasonRestartNeeded && condition(m, ConditionNICs).Reason == ReasonRestartNeeded
		})
		d.h.with(t, one, func(g *guest) { g.state = vmm.StateIdle; d.h.tell(g, vmm.EventGuestStopped) })
		d.attached(one)
		d.finish()
	}
}

func TestAnInterfaceKeepsItsDeviceAndHandleAsLongAsItCan(t *testing.T) {
	h, d := running(t, nil)
	set := func(n machine.NetworkInterface) func(*machine.Desired) {
		return func(want *machine.Desired) { want.NICs = []machine.NetworkInterface{n} }
	}
	detaches := func() int { return h.read(func() int { return h.asked["detach"] }) }
	d.want(one, set(machine.NetworkInterface{Name: "primary", IPs: []string{"10.0.0.2"}}))
	d.attached(one)
	if n := detaches(); n != 0 {
		t.Errorf("other addresses took the device out %d times", n)
	}
	applied := h.read(func() int { return h.asked["apply primary"] })
	for range 5 {
		d.r.Wake(one)
	}
	watch := make(chan struct{})
	go func() {
		defer close(watch)
		for d.store != nil && detaches() == 0 {
			if m, err := d.store.Get(one); err != nil || m.Record.NICs["primary"].Handle == "" {
				t.Errorf("handle: %v", err)
				return
			}
		}
	}()
	d.want(one, set(machine.NetworkInterface{Name: "primary", NetworkID: "other"}))
	d.until("in the other network", one, func(m *machine.Machine) bool {
		if m.Record.NICs["primary"].Handle == "" {
			t.Error("the handle was cleared")
		}
		return d.asWanted(m)
	})
	<-watch
	if n := h.read(func() int { return h.asked["apply primary"] }); n != applied+1 {
		t.Errorf("the plugin was told %d times without need", n-applied-1)
	}
	d.finish()
}

func TestAMachineThatIsPoweredOnAndWaitsForAnInterfaceIsPendingAndTellsWhy(t *testing.T) {
	h, d := running(t, func(_ *host, d *daemon) { d.tweak = func(o *Options) { o.Resync = time.Hour } })
	d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOff })
	d.until("off", one, func(m *machine.Machine) bool { return m.Record.State == machine.Suspended })
	ref := network.Ref{MachineID: one, Name: "primary"}
	h.wire(ref, network.Result{State: network.StateFailed, Reason: "BridgeMissing", Message: "bridge br0 does not exist"})
	d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOn })
	d.until("waiting", one, func(m *machine.Machine) bool {
		c := ready(m)
		return c.Reason == "BridgeMissing" && c.Message == "primary: bridge br0 does not exist" && m.Record.State == machine.Pending
	})
	if !d.told.has("BridgeMissing") {
		t.Errorf("no event tells why the machine waits: %v", d.told.reasons)
	}
	h.wire(ref, network.Result{State: network.StateReady})
	d.running(one)
	d.finish()
}

func TestAnInterfaceThatIsNotReadyIsWokenByItsPlugin(t *testing.T) {
	h, d := running(t, func(_ *host, d *daemon) { d.tweak = func(o *Options) { o.Resync = time.Hour } })
	ref := network.Ref{MachineID: one, Name: "extra"}
	h.wire(ref, network.Result{State: network.StatePending, Reason: "NoAddressYet", Message: "soon"})
	d.want(one, func(want *machine.Desired) { want.NICs = append(want.NICs, machine.NetworkInterface{Name: "extra"}) })
	d.until("waiting", one, func(m *machine.Machine) bool {
		c := condition(m, ConditionNICs)
		return c.Reason == "NoAddressYet" && m.Record.NICs["primary"].Attached
	})
	h.wire(ref, network.Result{State: network.StateReady})
	d.attached(one)
	h.wire(ref, network.Result{State: network.StateFailed, Reason: "BridgeMissing", Message: "gone"}) // while it is in use
	d.until("told", one, func(m *machine.Machine) bool {
		return condition(m, ConditionNICs).Reason == "BridgeMissing" && m.Record.NICs["extra"].Attached
	})
	h.wire(ref, network.Result{State: network.StateReady})
	d.attached(one)
	h.wire(ref, network.Result{State: network.StateLeaving, Reason: "Finalizer", Message: "wait"})
	d.want(one, func(want *machine.Desired) { want.NICs = want.NICs[:1] })
	d.until("leaving", one, func(m *machine.Machine) bool { return condition(m, ConditionNICs).Reason == "Finalizer" })
	d.remove(one)
	d.until("the machine waits too", one, func(m *machine.Machine) bool { return m != nil && ready(m).Reason == "Finalizer" })
	h.wire(ref, network.Result{State: network.StateReady})
	d.gone(one)
}

func TestACopyForAVolumeThatNobodyWantsAnyMoreIsGivenUp(t *testing.T) {
	h, d := running(t, nil)
	d.images.of = "registry/slow:1"
	d.images.set(&image.PullingError{Ref: "registry/slow:1"})
	slow := "registry/slow:1"
	d.want(one, add(machine.Volume{Name: "slow", LocalDisk: &machine.LocalDisk{Image: &slow}}, near("quick", 1<<20)))
	d.until("one waits for its image", one, func(m *machine.Machine) bool {
		return condition(m, ConditionVolumes).Reason == "PullingImage" && m.Record.Volumes["quick"].Attached
	})
	d.images.set(nil)
	d.r.ImageChanged(slow)
	d.attached(one)
	if h.starts != 1 {
		t.Error("restarted")
	}
	d.finish()
}

// TestAMediumThatOnlyItsVMMCanGrowGrows has one that is never larger than it was when it is prepared.
func TestAMediumThatOnlyItsVMMCanGrowGrows(t *testing.T) {
	h, d := running(t, func(h *host, _ *daemon) { h.fixed = true })
	sized := func(n int64) machine.Volume {
		v := far("data", "x")
		v.Connection.EffectiveStorageBytes = n
		return v
	}
	d.want(one, add(sized(1<<20)))
	d.attached(one)
	d.want(one, change(sized(8<<20)))
	d.attached(one)
	d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOff })
	d.until("released while off", one, func(m *machine.Machine) bool {
		return m.Record.State == machine.Suspended && h.read(func() int { return len(h.held) }) == 1
	})
	d.want(one, change(sized(16<<20)))
	d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOn })
	d.attached(one)
	d.finish()
}
