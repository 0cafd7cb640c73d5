// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console/exec"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/iriserver"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/event"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume/storagedaemon"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/apinet"
)

// parts are the daemon's pieces that live as long as it does.
type parts struct {
	reconciler *reconcile.Reconciler
	server     *iriserver.Server
	consoles   *console.Hub
	exec       *exec.Server // nil when off
	images     *image.Cache
	apinet     *apinet.Plugin // nil when off
	supervisor process.Supervisor
	storage    *storagedaemon.Manager
	drivers    *drivers
	watch      *watch
	log        *slog.Logger
}

func (p *parts) close() {
	p.images.Close()
	p.consoles.Close()
	p.storage.Close() // the daemons live on
	_ = p.supervisor.Close()
	p.drivers.close()
}

// assemble makes the pieces and starts none of them.
func assemble(
	ctx context.Context, cfg *config.Config, classes *class.Set, st *store.Store, w *watch, log *slog.Logger,
) (*parts, error) {
	p := &parts{log: log, watch: w}
	facts, err := host.ReadFacts(host.Source{})
	if err != nil {
		return nil, err
	}
	if p.drivers, err = newDrivers(ctx, cfg, log); err != nil {
		return nil, err
	}
	if p.apinet, err = newAPINet(cfg, st.ID(), log); err != nil {
		return nil, err
	}
	plugin, networks, err := newNetworks(cfg, p.drivers.chosen.Capabilities(), p.apinet, log)
	if err != nil {
		return nil, err
	}
	events, err := event.New(event.Options{Max: cfg.Events.Max, TTL: cfg.Events.TTL, Observe: w.countEvent})
	if err != nil {
		return nil, err
	}
	if p.supervisor, err = process.Auto(ctx, process.Options{Kind: cfg.Hypervisor.Supervisor, Logger: log}); err != nil {
		return nil, err
	}
	volumes, err := p.newVolumes(cfg, st, events)
	if err != nil {
		return nil, err
	}
	if p.consoles, err = console.New(console.Options{
		LogMaxBytes: cfg.Console.LogMaxBytes, Backups: cfg.Console.LogBackups, Logger: log, Expected: runs(st),
	}); err != nil {
		return nil, err
	}
	if p.images, err = image.New(image.Options{
		Dir: filepath.Join(cfg.StateDir, imagesDir), PlainHTTP: cfg.Images.PlainHTTP, DockerConfig: cfg.Images.DockerConfig,
		MaxPulls: cfg.Images.MaxConcurrentPulls, RetryMax: cfg.Reconcile.MaxBackoff, Logger: log,
		Budget: image.Amount(cfg.Images.Budget), Reserve: image.Amount(cfg.Images.Reserve), References: references(st),
		Observer: (&pulls{parts: p, store: st, events: events}).observe,
	}); err != nil {
		return nil, err
	}
	o := reconcile.Options{
		Store: st, Driver: p.drivers.chosen, Drivers: p.drivers.all, Supervisor: p.supervisor, Images: p.images,
		Volumes: volumes, Network: plugin, Networks: networks, Consoles: consoles{p.consoles}, Events: recorder{events},
		Logger:   log,
		StateDir: cfg.StateDir, RuntimeDir: cfg.RuntimeDir, Ignition: cfg.Hypervisor.Ignition,
		Workers: cfg.Reconcile.Workers, Resync: cfg.Reconcile.ResyncInterval, MaxBackoff: cfg.Reconcile.MaxBackoff,
		DeleteGrace: cfg.Shutdown.DeleteTimeout, PowerOffGrace: cfg.Shutdown.PowerOffTimeout,
		ButtonInterval: cfg.Shutdown.SignalInterval, GuestOff: reconcile.GuestOffPolicy(cfg.Shutdown.OnGuestPowerOff),
		Observe: w.countStep, ObserveWait: w.metrics.Wait, Failpoint: failpoints(log),
	}
	applyVolumes(cfg, &o)
	useGuestAgent(cfg, &o)
	if p.reconciler, err = reconcile.New(o); err != nil {
		return nil, err
	}
	size := class.Host{CPUs: int64(facts.CPUs), MemoryBytes: int64(facts.MemoryTotal)}
	if err := w.look(cfg, p, seen{node: facts.Hostname, store: st, classes: classes, host: size, events: events}); err != nil {
		return nil, err
	}
	urls, err := p.newExec(cfg, log)
	if err != nil {
		return nil, err
	}
	p.server, err = iriserver.New(iriserver.Options{
		Store: st, Events: events, Classes: classes, Reserve: cfg.Capacity.Reserve(), Host: size,
		Volumes: volumes, Network: plugin, Capabilities: p.drivers.chosen.Capabilities(), Ignition: cfg.Hypervisor.Ignition,
		CheckImage: image.ValidateReference, Exec: urls, Version: version, Logger: log,
	})
	return p, err
}

// followStore wakes machines when what is wanted of them changed.
func (p *parts) followStore(ctx context.Context, st *store.Store) error {
	watch := st.Watch(ctx, store.WatchOptions{Initial: true})
	defer watch.Close()
	for {
		id, m, err := watch.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		p.reconciler.Changed(id, m)
	}
}

// recorder fits the event recorder to the reconciler.
type recorder struct{ events *event.Recorder }

func (r recorder) Event(m *machine.Machine, eventType, reason, action, message string) {
	r.events.Record(event.Involved{ID: m.ID, Labels: m.Desired.Labels, Annotations: m.Desired.Annotations},
		event.Type(eventType), reason, action, message)
}

// consoles fits the console hub to the reconciler.
type consoles struct{ hub *console.Hub }

func (c consoles) Open(id string, v vmm.Console, logPath string) error {
	return c.hub.Open(id, console.Endpoint{Socket: v.Socket, ReplaysBacklog: v.ReplaysBacklog}, logPath)
}

func (c consoles) Close(id string) { c.hub.CloseMachine(id) }
