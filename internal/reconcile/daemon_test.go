// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process/processtest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

// daemon is one life of the daemon on a host.
type daemon struct {
	t      *testing.T
	h      *host
	store  *store.Store
	images *images
	told   *told
	dir    string
	tweak  func(*Options) // of the lives that begin from now on; may be nil
	r      *Reconciler
	stop   func()
}

func newDaemon(t *testing.T, h *host) *daemon {
	t.Helper()
	d := &daemon{t: t, h: h, images: &images{}, told: &told{}, dir: t.TempDir()}
	t.Cleanup(func() {
		if d.stop != nil {
			d.stop()
		}
		if d.store != nil {
			_ = d.store.Close()
		}
		if n := len(h.violations); n > 0 {
			t.Errorf("%d times something was taken from under a guest: %v", n, h.violations[0])
		}
	})
	return d
}

// start begins a life; the failpoint may be nil.
func (d *daemon) start(failpoint func(context.Context, StepName, string) error) {
	d.t.Helper()
	var err error
	if d.store, err = store.Open(d.t.Context(), store.Options{Dir: d.dir}); err != nil {
		d.t.Fatal(err)
	}
	sup := processtest.NewFake(d.h.world)
	o := Options{
		Store: d.store, Driver: driver{h: d.h}, Supervisor: sup, Images: d.images, Volumes: []volume.Plugin{volumes{d.h}},
		Network: nics{h: d.h}, Consoles: consoles{}, Events: d.told, StateDir: d.dir, RuntimeDir: d.dir,
		Workers: 4, MaxBackoff: 200 * time.Millisecond, Failpoint: failpoint,
		DetachRepeat: 20 * time.Millisecond, DetachSettle: time.Millisecond,
	}
	if d.tweak != nil {
		d.tweak(&o)
	}
	if d.r, err = New(o); err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(d.t.Context())
	var wg sync.WaitGroup
	watch := d.store.Watch(ctx, store.WatchOptions{})
	wg.Go(func() {
		for {
			id, m, err := watch.Next(ctx)
			if err != nil {
				return
			}
			d.r.Changed(id, m)
		}
	})
	wg.Go(func() { _ = d.r.Run(ctx) })
	d.stop = func() {
		cancel()
		wg.Wait()
		_ = sup.Close()
		if err := d.store.Close(); err != nil {
			d.t.Error(err)
		}
		d.stop, d.store = nil, nil
	}
}

// create stores a machine with one image-backed volume and one interface.
func (d *daemon) create(id string) {
	d.t.Helper()
	ref := "registry/image:1"
	_, err := d.store.Create(d.t.Context(), &machine.Machine{ID: id, Desired: machine.Desired{
		Generation: 1, CreatedAt: time.Now(), Power: machine.PowerOn, Class: "c",
		Resources: machine.Resources{CPUs: 1, MemoryBytes: 1 << 20},
		Volumes:   []machine.Volume{{Name: "root", Device: "oda", LocalDisk: &machine.LocalDisk{Image: &ref}}},
		NICs:      []machine.NetworkInterface{{Name: "primary"}},
		Ignition:  []byte("{}"),
	}})
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) want(id string, fn func(*machine.Desired)) {
	d.t.Helper()
	_, err := d.store.UpdateDesired(d.t.Context(), id, 0, func(want *machine.Desired) error {
		fn(want)
		want.Generation++
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) remove(id string) {
	d.t.Helper()
	d.want(id, func(want *machine.Desired) { now := time.Now(); want.DeletedAt = &now })
}

// until waits for a machine to be as said.
func (d *daemon) until(what, id string, ok func(*machine.Machine) bool) *machine.Machine {
	d.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		m, err := d.store.Get(id)
		if machine.IsKind(err, machine.NotFound) {
			m = nil
		} else if err != nil {
			d.t.Fatal(err)
		}
		if ok(m) {
			return m
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("machine never came to: %s\nlast: %+v", what, m)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (d *daemon) running(id string) *machine.Machine {
	d.t.Helper()
	return d.until("running", id, func(m *machine.Machine) bool {
		d.h.mu.Lock()
		defer d.h.mu.Unlock()
		g := d.h.living(id)
		return m != nil && m.Record.State == machine.Running && m.Record.ObservedGeneration == m.Desired.Generation &&
			g != nil && g.state == vmm.StateRunning
	})
}

func (d *daemon) gone(id string) {
	d.t.Helper()
	d.until("gone", id, func(m *machine.Machine) bool { return m == nil })
}

// leaks returns what is left on the host.
func (h *host) leaks() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var left []string
	for pid := range h.world.Living() {
		left = append(left, "process "+h.world.Living()[pid].Marker)
	}
	for v := range h.volumes {
		left = append(left, "volume "+v)
	}
	for n := range h.nics {
		left = append(left, "interface "+n)
	}
	return left
}

// ready is the condition of that name; empty if there is none.
func ready(m *machine.Machine) machine.Condition { return condition(m, ConditionReady) }

func condition(m *machine.Machine, kind string) machine.Condition {
	if c := m.Record.Condition(kind); c != nil {
		return *c
	}
	return machine.Condition{}
}

// asWanted reports whether the guest of a machine has exactly the devices that are wanted, as they are wanted, the
// record knows of no others, and all of it is shown.
func (d *daemon) asWanted(m *machine.Machine) bool {
	if m == nil || m.Record.ObservedGeneration != m.Desired.Generation {
		return false
	}
	d.h.mu.Lock()
	defer d.h.mu.Unlock()
	g := d.h.living(m.ID)
	if g == nil || g.state != vmm.StateRunning || len(g.cfg.Disks) != len(m.Desired.Volumes) || len(g.cfg.NICs) != len(m.Desired.NICs) {
		return false
	}
	for name, rec := range m.Record.Volumes {
		if _, wanted := m.Desired.Volume(name); !wanted && rec.IsLeaving() {
			return false
		}
	}
	for _, v := range m.Desired.Volumes {
		rec, i := m.Record.Volumes[v.Name], g.disk(vmm.DeviceID("disk", v.Name))
		if !rec.Attached || !rec.AskedAt.IsZero() || i < 0 || g.cfg.Disks[i].Path != rec.Path || !strings.HasSuffix(rec.Path, where(v)) {
			return false
		}
		if size := volume.WantedBytes(v); rec.SizeBytes < size || g.bytes[g.cfg.Disks[i].ID] < size {
			return false
		}
	}
	for _, n := range m.Desired.NICs {
		rec, i := m.Record.NICs[n.Name], g.nic(vmm.DeviceID("nic", n.Name))
		if !rec.Attached || i < 0 || g.cfg.NICs[i].MAC != "mac of "+n.NetworkID || len(m.Record.NICs) != len(m.Desired.NICs) {
			return false
		}
		if told := d.h.wanted[m.ID+"/"+n.Name].Interface; !slices.Equal(told.IPs, n.IPs) {
			return false
		}
	}
	return condition(m, ConditionVolumes).Status == machine.ConditionTrue && condition(m, ConditionNICs).Status == machine.ConditionTrue
}

// where is the end of the path under which the imaginary plugin gives a volume to a VMM.
func where(v machine.Volume) string {
	if v.Connection != nil {
		return "/far/" + v.Connection.Handle
	}
	return v.Name + "/disk.raw"
}

func (d *daemon) attached(id string) *machine.Machine {
	d.t.Helper()
	return d.until("devices as wanted", id, d.asWanted)
}
