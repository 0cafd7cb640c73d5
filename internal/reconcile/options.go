// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// Store is what reconciling needs of the store.
type Store interface {
	ID() string
	Get(id string) (*machine.Machine, error)
	List() []*machine.Machine
	UpdateRecord(ctx context.Context, id string, fn func(*machine.Record) error) (*machine.Machine, error)
	Remove(ctx context.Context, id string) error
}

// Images is what reconciling needs of the image cache. Neither call waits for the network.
type Images interface {
	Get(ctx context.Context, ref string) (*image.Image, error)
	GetPinned(ctx context.Context, ref string, d digest.Digest) (*image.Image, error)
}

// Consoles is what reconciling needs of the console hub. Open and Close are idempotent and quick.
type Consoles interface {
	Open(machineID string, console vmm.Console, logPath string) error
	Close(machineID string)
}

// Event types, as Kubernetes has them.
const (
	Normal  = "Normal"
	Warning = "Warning"
)

// Events takes what a user would like to be told. Messages hold no secrets.
type Events interface {
	Event(m *machine.Machine, eventType, reason, action, message string)
}

// Options is what a Reconciler is made of.
type Options struct {
	Store      Store
	Driver     vmm.Driver            // for new VMMs
	Drivers    map[string]vmm.Driver // by name, for VMMs that live already; Driver is added by itself
	Supervisor process.Supervisor
	Images     Images
	Volumes    []volume.Plugin
	Network    network.Plugin            // for new interfaces
	Networks   map[string]network.Plugin // by name, to release what they made before the configuration changed; Network is added by itself
	Consoles   Consoles
	Events     Events
	Logger     *slog.Logger

	StateDir   string // machines/<id>/ is below it
	RuntimeDir string // vmm/<short id>/ is below it
	Ignition   string // "auto" or one of the driver's transports

	DeleteGrace    time.Duration  // how long the guest of a deleted machine may take to shut down; 0 = its power is cut
	PowerOffGrace  time.Duration  // the same for power off
	ButtonInterval time.Duration  // between two presses of the power button: a guest that still boots misses the first; default 5s
	GuestOff       GuestOffPolicy // default restart
	// GuestShutdown asks a guest's agent to shut down; nil = guests have none.
	GuestShutdown func(ctx context.Context, vm vmm.VM) error
	// GuestInfo asks a guest's agent what the guest is; nil = guests have none.
	GuestInfo func(ctx context.Context, vm vmm.VM) (GuestFacts, error)

	CachePolicy    vmm.CachePolicy // of disks; empty = the driver's default
	ResizeByReplug bool            // a disk whose guest cannot be told of a new size is taken out and put in again
	DetachRepeat   time.Duration   // between two requests to a guest to let go of a device; default 5s
	// DetachSettle is how long a device must have been missing from the spec before its guest is asked to let go of it:
	// a client replaces an entry by removing it and adding it again. Default 250ms.
	DetachSettle time.Duration
	KeepDetached time.Duration // how long the data of a detached local disk are kept; default 10m, negative = not at all
	SweepEvery   time.Duration // between two looks for what belongs to nobody; default 5m
	SweepAge     time.Duration // how long something must have belonged to nobody before it is removed; default 45s

	Workers    int           // machines worked on at once; default 15
	Resync     time.Duration // a look at every machine although nothing was heard; default 1m
	MaxBackoff time.Duration // after failures of one machine; default and most 30s

	Now func() time.Time // default time.Now
	// Failpoint is called before and after each step ("before", "after"); an error fails the step. Nil in production.
	Failpoint func(ctx context.Context, step StepName, when string) error
	// Observe is told of each step that ran, for metrics. May be nil.
	Observe func(step StepName, took time.Duration, err error)
	// ObserveWait is told how long each machine had been due when a worker took it, for metrics. May be nil.
	ObserveWait func(late time.Duration)

	classNet string // where the kernel shows network devices; for tests
}

// Defaults of Options.
const (
	DefaultWorkers        = 15
	DefaultResync         = time.Minute
	DefaultMaxBackoff     = 30 * time.Second
	DefaultButtonInterval = 5 * time.Second
	DefaultDetachRepeat   = 5 * time.Second
	DefaultDetachSettle   = 250 * time.Millisecond
	DefaultKeepDetached   = 10 * time.Minute
	DefaultSweepEvery     = 5 * time.Minute
	DefaultSweepAge       = 45 * time.Second
)

func (o *Options) complete() error {
	missing := map[string]bool{
		"Store": o.Store == nil, "Driver": o.Driver == nil, "Supervisor": o.Supervisor == nil,
		"Images": o.Images == nil, "Network": o.Network == nil, "Consoles": o.Consoles == nil,
		"Events": o.Events == nil, "StateDir": o.StateDir == "", "RuntimeDir": o.RuntimeDir == "",
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		if missing[name] {
			return errors.New("reconcile: option " + name + " is missing")
		}
	}
	if o.MaxBackoff > DefaultMaxBackoff {
		return errors.New("reconcile: MaxBackoff is above 30s")
	}
	drivers := map[string]vmm.Driver{o.Driver.Name(): o.Driver}
	maps.Copy(drivers, o.Drivers)
	o.Drivers = drivers
	networks := map[string]network.Plugin{}
	maps.Copy(networks, o.Networks)
	networks[o.Network.Name()] = o.Network
	o.Networks = networks
	if o.KeepDetached == 0 {
		o.KeepDetached = DefaultKeepDetached
	}
	for _, d := range []struct {
		of    *time.Duration
		value time.Duration
	}{
		{&o.ButtonInterval, DefaultButtonInterval},
		{&o.Resync, DefaultResync},
		{&o.MaxBackoff, DefaultMaxBackoff},
		{&o.DetachRepeat, DefaultDetachRepeat},
		{&o.DetachSettle, DefaultDetachSettle},
		{&o.SweepEvery, DefaultSweepEvery},
		{&o.SweepAge, DefaultSweepAge},
	} {
		if *d.of <= 0 {
			*d.of = d.value
		}
	}
	if o.GuestOff == "" {
		o.GuestOff = GuestOffRestart
	}
	if o.Workers <= 0 {
		o.Workers = DefaultWorkers
	}
	if o.classNet == "" {
		o.classNet = sysClassNet
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Ignition == "" {
		o.Ignition = "auto"
	}
	if o.Failpoint == nil {
		o.Failpoint = func(context.Context, StepName, string) error { return nil }
	}
	if o.Observe == nil {
		o.Observe = func(StepName, time.Duration, error) {}
	}
	if o.ObserveWait == nil {
		o.ObserveWait = func(time.Duration) {}
	}
	return nil
}

// machineDir is the machine's directory on disk.
func (o *Options) machineDir(id string) string { return filepath.Join(o.StateDir, "machines", id) }

// ref names the directories of the machine and of its VMM.
func (o *Options) ref(id string) vmm.Ref {
	return vmm.Ref{MachineID: id, RuntimeDir: filepath.Join(o.RuntimeDir, "vmm", id), StateDir: o.machineDir(id)}
}

func (o *Options) consoleLog(id string) string { return filepath.Join(o.machineDir(id), "console.log") }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
