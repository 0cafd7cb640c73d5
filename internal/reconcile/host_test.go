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
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process/processtest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
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

	data       map[string]int   // what is on a volume, by "machine/name": a number of its own for each that began anew
	sizes      map[string]int64 // of volumes
	held       map[string]bool  // volumes of which the plugin holds something
	made       int
	violations []string                   // what must never happen and did
	lets       func(device string) unplug // how guests let go of a device; nil = at once
	slots      int                        // of a guest for devices; 0 = enough
	tells      bool                       // VMMs tell the sizes of disks
	plain      bool                       // VMMs cannot change their devices
	fixed      bool                       // media are grown by VMMs alone
	brief      bool                       // connections to VMMs end at once
	ripple     map[chan network.Ref]bool  // where the network plugin's events go
	wires      map[string]network.Result  // what the plugin says instead of ready, by name
	wanted     map[string]network.Request // what it was told last
}

// unplug is how a guest takes it that it is to let go of a device.
type unplug int

const (
	atOnce  unplug = iota
	late           // in a moment
	refuses        // not before it is reset
)

type guest struct {
	pid    int
	state  vmm.State
	cfg    vmm.Config
	boots  int
	events []chan vmm.Event

	problem string           // why it is paused
	tries   int              // to let it go on all the same
	heals   bool             // the next try does it
	leaving map[string]bool  // devices that it was asked to let go of
	bytes   map[string]int64 // sizes of disks that it was told, by id
}

func newHost() *host {
	h := &host{
		world: processtest.NewWorld(), guests: map[string]*guest{}, volumes: map[string]int{}, nics: map[string]bool{},
		failing: map[string]error{}, asked: map[string]int{}, data: map[string]int{}, sizes: map[string]int64{},
		held: map[string]bool{}, ripple: map[chan network.Ref]bool{}, wires: map[string]network.Result{},
		wanted: map[string]network.Request{},
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
	v := &vm{h: d.h, id: ref.MachineID, pid: g.pid, events: ch}
	if d.h.brief {
		go func() { _ = v.Close() }()
	}
	if d.h.plain {
		return struct{ vmm.VM }{v}, nil
	}
	return v, nil
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
		o.Problem = g.problem
		if v.h.identity != "" {
			o.MachineID = v.h.identity
		}
		for _, d := range g.cfg.Disks {
			o.Disks = append(o.Disks, d.ID)
			if v.h.tells {
				if o.DiskBytes == nil {
					o.DiskBytes = map[string]int64{}
				}
				o.DiskBytes[d.ID] = g.bytes[d.ID]
			}
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
			for _, d := range cfg.Disks {
				g.setBytes(d.ID, v.h.sizes[d.Path])
			}
		}
		return nil
	})
}

func (v *vm) Boot(context.Context) error {
	return v.call("boot", func(g *guest) error {
		if g.problem != "" { // it goes on, asks for the same, and is paused again
			g.tries++
			if !g.heals {
				v.h.tell(g, vmm.EventProblem)
				return nil
			}
			g.problem, g.state = "", vmm.StateRunning
			return nil
		}
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
