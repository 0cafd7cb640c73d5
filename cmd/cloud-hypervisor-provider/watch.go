// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/event"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/health"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/metrics"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/status"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/web"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
)

// checkInterval is how often the daemon asks itself, so that metrics show a failing check although nobody else asks.
const checkInterval = 30 * time.Second

// watch is what tells about the daemon: health, metrics, status.
type watch struct {
	servers config.Servers
	started time.Time
	log     *slog.Logger
	checks  *health.Registry
	metrics *metrics.Metrics
	sampler *metrics.Sampler
	page    http.Handler

	loaded, plugins, open *health.Gate // store, plugins, IRI socket

	stop  context.CancelFunc
	ended chan error // of the health server
}

// newWatch opens the health server, which then says what is still waited for.
func newWatch(ctx context.Context, cfg *config.Config, log *slog.Logger) (*watch, error) {
	w := &watch{
		servers: cfg.Servers, started: time.Now(), log: log, checks: health.New(health.Options{Logger: log}),
		loaded: health.NewGate("the store is being loaded"), plugins: health.NewGate("plugins are being made"),
		open: health.NewGate("the IRI socket is not open yet"), ended: make(chan error, 1),
	}
	var err error
	if w.metrics, err = metrics.New(version); err != nil {
		return nil, err
	}
	if err := w.checks.Add(w.loaded.Check("store-loaded", health.Ready), w.plugins.Check("plugins", health.Ready),
		w.open.Check("iri-socket", health.Ready)); err != nil {
		return nil, err
	}
	ctx, w.stop = context.WithCancel(ctx)
	go func() { w.ended <- w.serve(ctx, "health", w.servers.HealthAddress, w.checks.Handler()) }()
	return w, nil
}

func (w *watch) close() {
	w.stop()
	if err := <-w.ended; err != nil {
		w.log.Warn("health server ended", "error", err)
	}
	w.checks.Close()
}

// serve answers on address until ctx ends; an empty address keeps a server off.
func (w *watch) serve(ctx context.Context, name, address string, handler http.Handler) error {
	if address == "" {
		return nil
	}
	return web.Serve(ctx, web.Options{Name: name, Address: address, Handler: handler, Logger: w.log})
}

// seen is what is looked at besides the parts.
type seen struct {
	node    string
	store   *store.Store
	classes *class.Set
	host    class.Host
	events  *event.Recorder
}

// look begins to watch the parts, whose reconciler is there.
func (w *watch) look(cfg *config.Config, p *parts, s seen) error {
	checks := append(health.StoreChecks(s.store), health.SupervisorCheck(p.supervisor), health.VMMCheck(p.reconciler))
	checks = append(checks, health.DriverChecks(p.drivers.known[0].Binary.Path)...)
	checks = append(checks, p.apinetChecks(cfg)...)
	if err := w.checks.Add(checks...); err != nil {
		return err
	}
	var err error
	if w.sampler, err = w.metrics.Watch(metrics.Sources{
		Store: s.store, Work: p.reconciler, Classes: s.classes, Host: s.host, Reserve: cfg.Capacity.Reserve(),
		Drivers: metricDrivers(p.drivers), Events: s.events.Stats, Consoles: p.consoles.Stats, Checks: w.checks.Last,
		ImageDir: filepath.Join(cfg.StateDir, "images"), PerMachine: cfg.Servers.PerMachineMetrics,
	}); err != nil {
		return err
	}
	page, err := status.New(status.Options{
		Version: version, Node: s.node, Started: w.started, Drivers: statusDrivers(p.drivers), Supervisor: p.supervisor.Kind(),
		Store: s.store, Classes: s.classes, Host: s.host, Reserve: cfg.Capacity.Reserve(), Events: s.events, Health: w.checks,
		Queue: p.reconciler.QueueLength,
	})
	if err != nil {
		return err
	}
	if w.page, err = page.Handler(); err != nil {
		return err
	}
	w.plugins.Open()
	return nil
}

// ready is called once the IRI socket is open.
func (w *watch) ready(address string) {
	check, err := health.IRICheck(address, health.Live|health.Ready)
	if err == nil {
		err = w.checks.Add(check)
	}
	if err != nil {
		w.log.Warn("the IRI socket is not watched", "error", err)
	}
	w.open.Open()
}

// run serves metrics and the status page and keeps what they tell fresh, until ctx ends.
func (w *watch) run(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle(metrics.Path, w.metrics.Handler())
	mux.Handle(status.Path, w.page)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return w.serve(ctx, "metrics", w.servers.MetricsAddress, mux) })
	if w.servers.MetricsAddress != "" {
		group.Go(func() error { return w.sampler.Run(ctx) })
		group.Go(func() error { return w.checks.Run(ctx, checkInterval) })
	}
	return group.Wait()
}

func (w *watch) countStep(step reconcile.StepName, took time.Duration, err error) {
	w.metrics.Step(string(step), took, err)
}

func (w *watch) countEvent(kind event.Type, reason, action string) {
	w.metrics.Event(string(kind), reason, action)
}

func metricDrivers(d *drivers) []metrics.Driver {
	var all []metrics.Driver
	for _, k := range d.known {
		all = append(all, metrics.Driver{Name: k.Driver, Version: k.Binary.Version, Accelerator: k.Accelerator})
	}
	return all
}

func statusDrivers(d *drivers) []status.Driver {
	var all []status.Driver
	for i, k := range d.known {
		all = append(all, status.Driver{
			Name: k.Driver, Version: k.Binary.Version, Binary: k.Binary.Path, Firmware: k.Firmware.Code,
			Accelerator: k.Accelerator, Chosen: i == 0, Reasons: k.Reasons, Warnings: k.Warnings,
		})
	}
	return all
}
