// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package health answers whether the daemon works (live) and whether it can take requests (ready), by named checks
// that really ask. It exists so that a daemon which hangs is restarted and one which starts is waited for. It must
// never call the daemon dead for the fault of one machine, never let a flood of questions become a flood of checks, and
// never pile up checks that do not end.
package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Purpose is the question that a check helps to answer.
type Purpose int

// The purposes. A restart of the daemon should help when it is not live; nothing but time when it is not ready.
const (
	Live  Purpose = 1 << iota // /healthz
	Ready                     // /readyz
)

// Defaults of a Check.
const (
	DefaultTimeout = 2 * time.Second
	DefaultMaxAge  = time.Second
)

// staleAfter is how much older than MaxAge a background check's result may be shown; more than the usual interval of
// probes, 10 s.
const staleAfter = 20 * time.Second

// Check is one named thing that can be asked.
type Check struct {
	Name    string
	For     Purpose
	Timeout time.Duration // of one run; default 2s
	MaxAge  time.Duration // a result is given out this long; default 1s
	// Background shows the last result while a new one is sought, for checks that may take longer than an asker
	// should wait.
	Background bool
	// Probe asks. Its error is shown to anybody who asks and must hold no secret.
	Probe func(ctx context.Context) error
	// Close releases what Probe holds; may be nil.
	Close func()
}

// Result is what a check said last.
type Result struct {
	Name  string    `json:"name"`
	OK    bool      `json:"ok"`
	Error string    `json:"error,omitempty"`
	At    time.Time `json:"at"`    // when it was asked
	Since time.Time `json:"since"` // when it began to be so
	Took  float64   `json:"tookSeconds"`
}

// Report is the answer to one of the two questions.
type Report struct {
	OK     bool     `json:"ok"`
	Checks []Result `json:"checks"` // in the order in which they were added
}

// Options is what a Registry is made of.
type Options struct {
	Logger *slog.Logger     // told when a check's answer changes; default: none
	Now    func() time.Time // default time.Now
}

// Registry holds the checks.
type Registry struct {
	log *slog.Logger
	now func() time.Time

	ctx  context.Context // ends the runs under way
	stop context.CancelFunc
	runs sync.WaitGroup

	mu     sync.Mutex
	probes []*probe
	closed bool
}

// New makes a Registry without checks, which is live and ready.
func New(o Options) *Registry {
	r := &Registry{log: o.Logger, now: o.Now}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.now == nil {
		r.now = time.Now
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// Add adds checks; their names must be new.
func (r *Registry) Add(checks ...Check) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range checks {
		known := slices.ContainsFunc(r.probes, func(p *probe) bool { return p.check.Name == c.Name })
		switch {
		case r.closed:
			return errors.New("health: the registry is closed")
		case c.Name == "" || c.Probe == nil || c.For&(Live|Ready) == 0:
			return fmt.Errorf("health: check %q lacks a name, a purpose or a probe", c.Name)
		case known:
			return fmt.Errorf("health: check %q is there twice", c.Name)
		}
		if c.Timeout <= 0 {
			c.Timeout = DefaultTimeout
		}
		if c.MaxAge <= 0 {
			c.MaxAge = DefaultMaxAge
		}
		r.probes = append(r.probes, &probe{registry: r, check: c})
	}
	return nil
}

// Report asks all checks of a purpose at once, without those named. It takes as long as the slowest, at most the
// longest time-out.
func (r *Registry) Report(ctx context.Context, purpose Purpose, without ...string) Report {
	r.mu.Lock()
	var asked []*probe
	for _, p := range r.probes {
		if p.check.For&purpose != 0 && !slices.Contains(without, p.check.Name) {
			asked = append(asked, p)
		}
	}
	r.mu.Unlock()
	report := Report{OK: true, Checks: make([]Result, len(asked))}
	var wg sync.WaitGroup
	for i, p := range asked {
		result, fresh := p.begin()
		if fresh {
			report.Checks[i] = result
			continue
		}
		wg.Go(func() { report.Checks[i] = p.wait(ctx) })
	}
	wg.Wait()
	for _, c := range report.Checks {
		report.OK = report.OK && c.OK
	}
	return report
}

// Last returns what each check said last and asks nothing; those that were never asked are left out.
func (r *Registry) Last() []Result {
	r.mu.Lock()
	probes := slices.Clone(r.probes)
	r.mu.Unlock()
	var all []Result
	for _, p := range probes {
		if last, ok := p.known(); ok {
			all = append(all, last)
		}
	}
	return all
}

// Run asks all checks now and then until ctx ends, so that Last is never old although nobody else asks.
func (r *Registry) Run(ctx context.Context, every time.Duration) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		r.Report(ctx, Live|Ready)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Close ends the runs under way and waits for them.
func (r *Registry) Close() {
	r.mu.Lock()
	already := r.closed
	r.closed = true
	probes := r.probes
	r.mu.Unlock()
	r.stop()
	r.runs.Wait()
	for _, p := range probes {
		if p.check.Close != nil && !already {
			p.check.Close()
		}
	}
}
