// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
)

func newRPCMetrics() *grpcprom.ServerMetrics {
	return grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram())
}

// observeSteps counts and times the reconciler's steps by name and outcome.
func observeSteps(reg prometheus.Registerer) func(reconcile.StepName, time.Duration, error) {
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "chp_reconcile_step_duration_seconds",
		Help:    "Duration of reconcile steps by name and result (ok or error).",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
	}, []string{"step", "result"})
	reg.MustRegister(duration)
	return func(step reconcile.StepName, took time.Duration, err error) {
		result := "ok"
		if err != nil {
			result = "error"
		}
		duration.WithLabelValues(string(step), result).Observe(took.Seconds())
	}
}

func registerMetrics(reg prometheus.Registerer, rpc *grpcprom.ServerMetrics, r *reconcile.Reconciler) {
	reg.MustRegister(rpc, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "chp_reconcile_queue_length", Help: "Machines that wait for a look, due or not.",
		}, func() float64 { return float64(r.QueueLength()) }))
}

// serveMetrics answers /metrics on address until ctx ends; an empty address keeps it off.
func (p *parts) serveMetrics(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
