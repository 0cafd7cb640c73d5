// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package processtest holds what tests need around package process: an
// in-memory supervisor that can be told to misbehave, and the conformance
// suite that it and the real supervisors pass.
//
// It exists so that drivers and the reconciler are tested without forking. It
// must never be imported by anything but tests.
package processtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

// World is an imaginary host: its processes live on when a Fake is closed and
// are found by the next one, as after a restart of the daemon. The zero value
// is not usable; call NewWorld.
type World struct {
	mu        sync.Mutex
	boot      int
	nextPID   int
	ticks     uint64
	tasks     map[int]*task
	onStart   func(process.Spec, process.Identity)
	startErrs []error
	adoptErr  error
	findErr   error
}

// task is one imaginary process.
type task struct {
	id      process.Identity
	spec    process.Spec
	parent  *Fake
	ignored map[syscall.Signal]bool
	signals []os.Signal
	exit    process.Exit
	over    chan struct{}
}

// NewWorld returns a host without processes.
func NewWorld() *World {
	return &World{boot: 1, nextPID: 1000, ticks: 100, tasks: map[int]*task{}}
}

// FailStarts makes the next starts fail, one per error; nil lets one pass.
func (w *World) FailStarts(errs ...error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.startErrs = append(w.startErrs, errs...)
}

// FailAdopt makes every Adopt answer err (unknown) until called with nil.
func (w *World) FailAdopt(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.adoptErr = err
}

// FailFind makes Find and FindAll answer err until called with nil.
func (w *World) FailFind(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.findErr = err
}

// OnStart registers what a started process does, for instance serve a socket.
// It is called without locks held, before Start returns.
func (w *World) OnStart(f func(process.Spec, process.Identity)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onStart = f
}

// Ignore makes a process ignore signals; SIGKILL cannot be ignored.
func (w *World) Ignore(pid int, sigs ...syscall.Signal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.tasks[pid]; t != nil {
		for _, s := range sigs {
			t.ignored[s] = s != syscall.SIGKILL
		}
	}
}

// Finish ends a process by itself with an exit code.
func (w *World) Finish(pid, code int) {
	w.finish(pid, process.Exit{Known: true, Code: code})
}

// Kill ends a process by a signal from nowhere, such as the OOM killer's.
func (w *World) Kill(pid int, sig syscall.Signal) {
	w.finish(pid, process.Exit{Known: true, Code: -1, Signal: signalName(sig)})
}

func (w *World) finish(pid int, exit process.Exit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.tasks[pid]; t != nil {
		w.end(t, exit)
	}
}

func (w *World) end(t *task, exit process.Exit) {
	exit.At = time.Now()
	t.exit = exit
	delete(w.tasks, t.id.PID)
	close(t.over)
}

// Reboot ends everything and gives the host another boot id.
func (w *World) Reboot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tasks {
		w.end(t, process.Exit{Code: -1})
	}
	w.boot++
	w.nextPID, w.ticks = 1000, 100
}

// Living returns the specs of all living processes by pid.
func (w *World) Living() map[int]process.Spec {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make(map[int]process.Spec, len(w.tasks))
	for pid, t := range w.tasks {
		out[pid] = t.spec
	}
	return out
}

// Signals returns what a living process has been sent so far.
func (w *World) Signals(pid int) []os.Signal {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.tasks[pid]; t != nil {
		return slices.Clone(t.signals)
	}
	return nil
}

// Fake is a supervisor over a World. Argv ["exit", "N"] describes a process
// that ends at once with code N; every other one lives until it is ended.
type Fake struct {
	world  *World
	closed chan struct{}
	once   sync.Once
}

var _ process.Supervisor = (*Fake)(nil)

// NewFake returns a supervisor over the world, as a fresh daemon would have.
func NewFake(w *World) *Fake { return &Fake{world: w, closed: make(chan struct{})} }

// Kind is process.KindChild, which Fake behaves like.
func (f *Fake) Kind() string { return process.KindChild }

// Close stops watching; the imaginary processes go on.
func (f *Fake) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

func (f *Fake) open(ctx context.Context) error {
	select {
	case <-f.closed:
		return process.ErrClosed
	default:
		return ctx.Err()
	}
}

// Start begins an imaginary process.
func (f *Fake) Start(ctx context.Context, spec process.Spec) (process.Process, error) {
	if err := f.open(ctx); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	t, hook, err := f.world.begin(f, spec)
	if err != nil {
		return nil, err
	}
	if hook != nil {
		hook(spec, t.id)
	}
	if len(spec.Argv) == 2 && spec.Argv[0] == "exit" {
		code, err := strconv.Atoi(spec.Argv[1])
		if err != nil {
			return nil, fmt.Errorf("imaginary exit code: %w", err)
		}
		f.world.Finish(t.id.PID, code)
	}
	return f.watch(t), nil
}

func (w *World) begin(f *Fake, spec process.Spec) (*task, func(process.Spec, process.Identity), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.startErrs) > 0 {
		err := w.startErrs[0]
		w.startErrs = w.startErrs[1:]
		if err != nil {
			return nil, nil, fmt.Errorf("start %s: %w", spec.Name, err)
		}
	}
	w.nextPID++
	w.ticks += 7
	t := &task{
		id: process.Identity{
			PID: w.nextPID, StartTicks: w.ticks, BootID: "boot-" + strconv.Itoa(w.boot), Marker: spec.Marker,
		},
		spec: spec, parent: f, ignored: map[syscall.Signal]bool{}, over: make(chan struct{}),
	}
	w.tasks[t.id.PID] = t
	return t, w.onStart, nil
}

// Adopt takes up an imaginary process.
func (f *Fake) Adopt(ctx context.Context, id process.Identity) (process.Process, error) {
	if err := f.open(ctx); err != nil {
		return nil, err
	}
	w := f.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.adoptErr != nil {
		return nil, fmt.Errorf("adopt pid %d: %w", id.PID, w.adoptErr)
	}
	if id.PID <= 1 || id.StartTicks == 0 || id.BootID == "" || id.Marker == "" {
		return nil, fmt.Errorf("%w: identity %+v", process.ErrInvalid, id)
	}
	t := w.tasks[id.PID]
	switch {
	case t == nil || t.id.StartTicks != id.StartTicks || t.id.BootID != id.BootID:
		return nil, fmt.Errorf("pid %d: %w", id.PID, process.ErrGone)
	case t.id.Marker != id.Marker:
		return nil, fmt.Errorf("pid %d: %w", id.PID, process.ErrNotOurs)
	}
	return f.watch(t), nil
}

// Find returns the processes with this marker.
func (f *Fake) Find(ctx context.Context, marker string) ([]process.Identity, error) {
	return f.scan(ctx, func(m string) bool { return m == marker })
}

// FindAll returns the processes whose marker starts with prefix.
func (f *Fake) FindAll(ctx context.Context, prefix string) ([]process.Identity, error) {
	return f.scan(ctx, func(m string) bool { return strings.HasPrefix(m, prefix) })
}

func (f *Fake) scan(ctx context.Context, match func(string) bool) ([]process.Identity, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := f.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.findErr != nil {
		return nil, fmt.Errorf("scan processes: %w", w.findErr)
	}
	var ids []process.Identity
	for _, t := range w.tasks {
		if match(t.id.Marker) {
			ids = append(ids, t.id)
		}
	}
	slices.SortFunc(ids, func(a, b process.Identity) int { return a.PID - b.PID })
	return ids, nil
}

// fakeProcess is one supervisor's view of a task.
type fakeProcess struct {
	f    *Fake
	t    *task
	done chan struct{}
}

func (f *Fake) watch(t *task) *fakeProcess {
	p := &fakeProcess{f: f, t: t, done: make(chan struct{})}
	go func() {
		select {
		case <-f.closed:
		case <-t.over:
			close(p.done)
		}
	}()
	return p
}

func (p *fakeProcess) Identity() process.Identity { return p.t.id }
func (p *fakeProcess) Done() <-chan struct{}      { return p.done }

func (p *fakeProcess) Exit() process.Exit {
	select {
	case <-p.done:
	default:
		return process.Exit{}
	}
	p.f.world.mu.Lock()
	defer p.f.world.mu.Unlock()
	if p.t.parent != p.f {
		return process.Exit{Code: -1, At: p.t.exit.At}
	}
	return p.t.exit
}

func (p *fakeProcess) Signal(ctx context.Context, sig os.Signal) error {
	num, ok := sig.(syscall.Signal)
	if !ok {
		return fmt.Errorf("%w: signal %v", process.ErrInvalid, sig)
	}
	w := p.f.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tasks[p.t.id.PID] != p.t {
		return os.ErrProcessDone
	}
	if err := p.f.open(ctx); err != nil {
		return err
	}
	p.t.signals = append(p.t.signals, sig)
	if num != 0 && !p.t.ignored[num] {
		w.end(p.t, process.Exit{Known: true, Code: -1, Signal: signalName(num)})
	}
	return nil
}

func signalName(sig syscall.Signal) string {
	names := map[syscall.Signal]string{
		syscall.SIGKILL: "SIGKILL", syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT",
		syscall.SIGABRT: "SIGABRT", syscall.SIGSEGV: "SIGSEGV", syscall.SIGBUS: "SIGBUS",
	}
	if n, ok := names[sig]; ok {
		return n
	}
	return "SIG" + strconv.Itoa(int(sig))
}

// ErrScripted is a ready-made error for FailStarts and its like.
var ErrScripted = errors.New("scripted failure")
