// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process/processtest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

// patience is far above what any test needs.
const patience = 30 * time.Second

// host is an imaginary server: processes, guests, volumes and interfaces that outlive the reconciler.
type host struct {
	world *processtest.World

	mu       sync.Mutex
	guests   map[string]*guest // by machine
	volumes  map[string]int    // prepared, by "machine/name": times made
	nics     map[string]bool
	failing  map[string]error // by call, such as "boot"
	starts   int
	presses  int            // of power buttons
	obeys    bool           // guests go down when their power button is pressed
	identity string         // what inspect answers as machine, "" = the truth
	booted   func(*guest)   // what becomes of a guest right after its boot; may be nil
	asked    map[string]int // calls to VMMs, by name
}

type guest struct {
	pid    int
	state  vmm.State
	cfg    vmm.Config
	boots  int
	events []chan vmm.Event
}

func newHost() *host {
	h := &host{
		world: processtest.NewWorld(), guests: map[string]*guest{}, volumes: map[string]int{}, nics: map[string]bool{},
		failing: map[string]error{}, asked: map[string]int{},
	}
	h.world.OnStart(h.onStart)
	return h
}

func (h *host) onStart(spec process.Spec, id process.Identity) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.starts++
	h.guests[strings.Split(spec.Marker, "/")[1]] = &guest{pid: id.PID, state: vmm.StateEmpty}
}

// living returns the guest of a machine whose process lives.
func (h *host) living(id string) *guest {
	g := h.guests[id]
	if g == nil {
		return nil
	}
	if _, ok := h.world.Living()[g.pid]; !ok {
		return nil
	}
	return g
}

func (h *host) with(t *testing.T, id string, fn func(*guest)) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.living(id)
	if g == nil {
		t.Fatalf("machine %s has no living VMM", id)
	}
	fn(g)
}

func (h *host) tell(g *guest, kind vmm.EventKind) {
	for _, ch := range g.events {
		select {
		case ch <- vmm.Event{Kind: kind}:
		default:
		}
	}
}

func (h *host) fail(call string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failing[call] = err
}

type driver struct {
	h    *host
	name string // "" = imaginary
}

func (d driver) Name() string { return cmp.Or(d.name, "imaginary") }
func (d driver) Capabilities() vmm.Capabilities {
	return vmm.Capabilities{Ignition: []vmm.IgnitionTransport{vmm.IgnitionFWCfg}}
}
func (d driver) Validate(vmm.Config) error { return nil }
func (d driver) Prepare(context.Context, vmm.Config) (process.Spec, error) {
	return process.Spec{Argv: []string{"imaginary-vmm"}}, nil
}
func (d driver) Cleanup(context.Context, vmm.Ref) error { return nil }

func (d driver) Connect(_ context.Context, ref vmm.Ref) (vmm.VM, error) {
	d.h.mu.Lock()
	defer d.h.mu.Unlock()
	g := d.h.living(ref.MachineID)
	if g == nil || d.h.failing["connect"] != nil {
		return nil, machine.Errorf(machine.Unavailable, "nobody listens")
	}
	ch := make(chan vmm.Event, 16)
	g.events = append(g.events, ch)
	return &vm{h: d.h, id: ref.MachineID, pid: g.pid, events: ch}, nil
}

type vm struct {
	h      *host
	id     string
	pid    int
	events chan vmm.Event
	once   sync.Once
}

// call finds the guest behind the connection, or fails as told.
func (v *vm) call(name string, fn func(*guest) error) error {
	v.h.mu.Lock()
	defer v.h.mu.Unlock()
	v.h.asked[name]++
	if err := v.h.failing[name]; err != nil {
		return err
	}
	g := v.h.living(v.id)
	if g == nil || g.pid != v.pid {
		return machine.Errorf(machine.Unavailable, "connection lost")
	}
	return fn(g)
}

func (v *vm) Inspect(context.Context) (o vmm.Observation, err error) {
	err = v.call("inspect", func(g *guest) error {
		o = vmm.Observation{State: g.state, PID: g.pid}
		if g.state != vmm.StateEmpty {
			o.MachineID = v.id
		}
		if v.h.identity != "" {
			o.MachineID = v.h.identity
		}
		for _, d := range g.cfg.Disks {
			o.Disks = append(o.Disks, d.ID)
		}
		for _, n := range g.cfg.NICs {
			o.NICs = append(o.NICs, n.ID)
		}
		return nil
	})
	return o, err
}

func (v *vm) Create(_ context.Context, cfg vmm.Config) error {
	return v.call("create", func(g *guest) error {
		if g.state == vmm.StateEmpty {
			g.state, g.cfg = vmm.StateIdle, cfg
		}
		return nil
	})
}

func (v *vm) Boot(context.Context) error {
	return v.call("boot", func(g *guest) error {
		if g.state != vmm.StateRunning {
			g.state = vmm.StateRunning
			g.boots++
			if v.h.booted != nil {
				v.h.booted(g)
			}
		}
		return nil
	})
}

func (v *vm) PowerButton(context.Context) error {
	return v.call("button", func(g *guest) error {
		v.h.presses++
		if v.h.obeys {
			g.state = vmm.StateIdle
			v.h.tell(g, vmm.EventGuestStopped)
		}
		return nil
	})
}
func (v *vm) Reset(context.Context) error { return nil }
func (v *vm) PowerOff(context.Context) error {
	return v.call("poweroff", func(g *guest) error { g.state = vmm.StateIdle; return nil })
}

func (v *vm) Shutdown(context.Context) error {
	pid := 0
	err := v.call("shutdown", func(g *guest) error { pid = g.pid; return nil })
	if err == nil {
		v.h.world.Finish(pid, 0)
	}
	return err
}
func (v *vm) Events() <-chan vmm.Event { return v.events }
func (v *vm) Console() vmm.Console     { return vmm.Console{Socket: "nowhere"} }
func (v *vm) Close() error {
	v.once.Do(func() {
		v.h.mu.Lock()
		defer v.h.mu.Unlock()
		if g := v.h.guests[v.id]; g != nil {
			for i, ch := range g.events {
				if ch == v.events {
					g.events = append(g.events[:i], g.events[i+1:]...)
					break
				}
			}
		}
		close(v.events)
	})
	return nil
}

type volumes struct{ h *host }

func (p volumes) Name() string                          { return "imaginary" }
func (p volumes) Supports(v machine.Volume) bool        { return v.LocalDisk != nil }
func (p volumes) Validate(string, machine.Volume) error { return nil }
func (p volumes) Prepare(_ context.Context, req volume.Request) (volume.Prepared, error) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if err := p.h.failing["volume"]; err != nil {
		return volume.Prepared{}, err
	}
	p.h.volumes[req.MachineID+"/"+req.Volume.Name]++
	return volume.Prepared{Handle: "vol://" + req.Volume.Name, Path: req.Dir + "/disk.raw", SizeBytes: 1 << 20}, nil
}

func (p volumes) Delete(_ context.Context, req volume.Request) error {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if p.h.living(req.MachineID) != nil {
		panic("volume deleted under a living VMM")
	}
	delete(p.h.volumes, req.MachineID+"/"+req.Volume.Name)
	return p.h.failing["volume.delete"]
}

type nics struct {
	h    *host
	name string // "" = imaginary
}

func (p nics) Name() string                                    { return cmp.Or(p.name, "imaginary") }
func (p nics) key(req network.Request) string                  { return p.name + req.MachineID + "/" + req.NIC.Name }
func (p nics) Validate(string, machine.NetworkInterface) error { return nil }
func (p nics) Apply(_ context.Context, req network.Request) (network.Result, error) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	p.h.nics[p.key(req)] = true
	return network.Result{Ready: true, Handle: "nic://" + p.name + req.NIC.Name, Backend: network.BackendIsolated}, nil
}

func (p nics) Delete(_ context.Context, req network.Request) error {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	delete(p.h.nics, p.key(req))
	return nil
}

type images struct {
	mu  sync.Mutex
	err error
	of  string // the reference that err is about, "" = all
}

func (i *images) Get(_ context.Context, ref string) (*image.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err != nil && (i.of == "" || i.of == ref) {
		return nil, i.err
	}
	return &image.Image{
		Digest: digest.FromString("image"), RootFS: &image.Blob{Path: "/rootfs", Size: 1},
		Kernel: &image.Blob{Path: "/kernel"},
	}, nil
}

func (i *images) GetPinned(ctx context.Context, ref string, _ digest.Digest) (*image.Image, error) {
	return i.Get(ctx, ref)
}

func (i *images) set(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.err = err
}

type consoles struct{}

func (consoles) Open(string, vmm.Console, string) error { return nil }
func (consoles) Close(string)                           {}

type told struct {
	mu      sync.Mutex
	reasons []string
	texts   []string
	on      func(reason, text string) // called with each; may be nil
}

func (e *told) Event(_ *machine.Machine, _, reason, _, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reasons = append(e.reasons, reason)
	e.texts = append(e.texts, message)
	if e.on != nil {
		e.on(reason, message)
	}
}

func (e *told) has(reason string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.reasons {
		if r == reason {
			return true
		}
	}
	return false
}

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
