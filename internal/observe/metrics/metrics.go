// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"net/http"
	"runtime"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Path is where metrics are served.
const Path = "/metrics"

// maxScrapes bounds the scrapes under way.
const maxScrapes = 4

// Driver is a hypervisor of this server.
type Driver struct {
	Name        string // "cloud-hypervisor", "qemu"
	Version     string
	Accelerator string
}

// Metrics is a registry and what is counted while things happen. What is asked for at a scrape is added by Watch.
type Metrics struct {
	registry *prometheus.Registry
	rpc      *grpcprom.ServerMetrics
	steps    *prometheus.HistogramVec
	waits    prometheus.Histogram
	events   *prometheus.CounterVec
	restarts *prometheus.CounterVec
}

// Causes of a restart.
const (
	causeVMMEnded     = "vmm_ended"     // the process ended, unasked
	causeGuestStopped = "guest_stopped" // the guest powered itself off although it was to be on
)

// New makes the registry. The version is that of the daemon.
func New(version string) (*Metrics, error) {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		rpc:      grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram()),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "chp_reconcile_step_duration_seconds", Help: "Duration of reconcile steps by name and result (ok or error).",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
		}, []string{"step", "result"}),
		waits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "chp_reconcile_queue_wait_seconds", Help: "How long machines had been due when a worker took them.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
		}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "chp_events_recorded_total", Help: "Machine events recorded, repetitions included, by type and reason.",
		}, []string{"type", "reason"}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "chp_vmm_restarts_total",
			Help: "Machines started again because the VMM ended (vmm_ended) or the guest powered off (guest_stopped) unasked.",
		}, []string{"cause"}),
	}
	for _, cause := range []string{causeVMMEnded, causeGuestStopped} {
		m.restarts.WithLabelValues(cause)
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "chp_build_info", Help: "Always 1; the labels say what runs.",
	}, []string{"version", "go_version"})
	build.WithLabelValues(version, runtime.Version()).Set(1)
	var failed error
	for _, c := range []prometheus.Collector{
		m.rpc, m.steps, m.waits, m.events, m.restarts, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		failed = errors.Join(failed, m.registry.Register(c))
	}
	return m, failed
}

// RPC counts and times calls; it is given to the IRI server.
func (m *Metrics) RPC() *grpcprom.ServerMetrics { return m.rpc }

// Step counts and times a step of reconciling.
func (m *Metrics) Step(name string, took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.steps.WithLabelValues(name, result).Observe(took.Seconds())
}

// Wait counts how long a machine had been due when a worker took it.
func (m *Metrics) Wait(late time.Duration) { m.waits.Observe(late.Seconds()) }

// Event counts a machine event. Type, reason and action are those of the code, never a client's.
func (m *Metrics) Event(kind, reason, action string) {
	m.events.WithLabelValues(kind, reason).Inc()
	switch {
	case reason == "VMMEnded":
		m.restarts.WithLabelValues(causeVMMEnded).Inc()
	case reason == "GuestStopped" && action == "RestartMachine":
		m.restarts.WithLabelValues(causeGuestStopped).Inc()
	}
}

// Handler answers scrapes, a few at a time.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes, ErrorHandling: promhttp.ContinueOnError,
	})
}
