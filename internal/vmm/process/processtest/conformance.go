// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package processtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

// patience is far above what any step takes; only a hang reaches it.
const patience = 30 * time.Second

// Factory tells the suite how to get a supervisor and what to run.
type Factory struct {
	// New returns a fresh supervisor over the same host, as a new daemon
	// would have. The suite closes it.
	New func(t *testing.T) process.Supervisor
	// Stay is the argv of a process that stays until a signal ends it.
	Stay []string
	// Exit is the argv of a process that ends at once with this code.
	Exit func(code int) []string
}

type suite struct {
	Factory
	prefix string
}

// Conformance checks what every supervisor promises.
func Conformance(t *testing.T, f Factory) {
	t.Helper()
	s := &suite{Factory: f}
	for _, c := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"a started process has a complete identity and no exit", startsComplete},
		{"an exit code is known", exitCodeKnown},
		{"a kill is known by the signal's name", killKnown},
		{"a signal after the end says that the process is done", signalAfterEnd},
		{"signal zero only asks", signalZero},
		{"a program that does not exist is an error and leaves nothing", noProgram},
		{"a broken description is refused by kind", brokenSpec},
		{"a process outlives its supervisor and is adopted as the same", outlives},
		{"the end of an adopted process is noticed", adoptedEnds},
		{"adopting twice gives the same process", adoptTwice},
		{"another start time proves the process gone", otherStart},
		{"another boot proves the process gone", otherBoot},
		{"another marker is not ours", otherMarker},
		{"an ended process is gone", endedIsGone},
		{"an incomplete identity is never gone", incompleteIdentity},
		{"a process is found by marker without a record", foundByMarker},
		{"all processes are found by prefix", foundByPrefix},
		{"a closed supervisor refuses", closedRefuses},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.prefix = "conformance-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "/"
			c.run(t, s)
		})
	}
}

func (s *suite) supervisor(t *testing.T) process.Supervisor {
	t.Helper()
	sup := s.New(t)
	t.Cleanup(func() { _ = sup.Close() })
	return sup
}

func (s *suite) spec(t *testing.T, name string, argv []string) process.Spec {
	t.Helper()
	return process.Spec{
		Name: "chp-test-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + name,
		Argv: argv, Marker: s.prefix + name,
		Output: filepath.Join(t.TempDir(), "output"),
	}
}

// start runs a process that is ended with the test whoever watches it then.
func (s *suite) start(t *testing.T, sup process.Supervisor, name string, argv []string) process.Process {
	t.Helper()
	p, err := sup.Start(t.Context(), s.spec(t, name, argv))
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() { s.cleanUp(t, p.Identity()) })
	return p
}

func (s *suite) cleanUp(t *testing.T, id process.Identity) {
	sup := s.New(t)
	defer func() { _ = sup.Close() }()
	// The test's own context is over when its clean-up runs.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := sup.Adopt(ctx, id)
	if errors.Is(err, process.ErrGone) {
		return
	}
	if err != nil {
		t.Errorf("adopt pid %d to end it: %v", id.PID, err)
		return
	}
	if err := p.Signal(ctx, syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("end pid %d: %v", id.PID, err)
		return
	}
	wait(t, p)
}

func wait(t *testing.T, p process.Process) process.Exit {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatalf("end of pid %d was not noticed within %v", p.Identity().PID, patience)
	}
	return p.Exit()
}

func signal(t *testing.T, p process.Process, sig os.Signal) {
	t.Helper()
	if err := p.Signal(t.Context(), sig); err != nil {
		t.Fatalf("signal: %v", err)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}

func startsComplete(t *testing.T, s *suite) {
	p := s.start(t, s.supervisor(t), "vm", s.Stay)
	id := p.Identity()
	if id.PID <= 1 || id.StartTicks == 0 || id.BootID == "" || id.Marker != s.prefix+"vm" {
		t.Errorf("incomplete identity %+v", id)
	}
	select {
	case <-p.Done():
		t.Error("is done although it was not ended")
	default:
	}
	if got := p.Exit(); got != (process.Exit{}) {
		t.Errorf("exit %+v before the end", got)
	}
}

func exitCodeKnown(t *testing.T, s *suite) {
	sup := s.supervisor(t)
	for _, code := range []int{0, 1, 42} {
		p := s.start(t, sup, "exit"+strconv.Itoa(code), s.Exit(code))
		exit := wait(t, p)
		if exit.At.IsZero() {
			t.Error("no time of exit")
		}
		exit.At = time.Time{}
		if diff := cmp.Diff(process.Exit{Known: true, Code: code}, exit); diff != "" {
			t.Errorf("exit (-want +got):\n%s", diff)
		}
	}
}

func killKnown(t *testing.T, s *suite) {
	p := s.start(t, s.supervisor(t), "vm", s.Stay)
	signal(t, p, syscall.SIGKILL)
	exit := wait(t, p)
	if !exit.Known || exit.Signal != "SIGKILL" || exit.Code != -1 {
		t.Errorf("exit %+v, want SIGKILL", exit)
	}
}

func signalAfterEnd(t *testing.T, s *suite) {
	p := s.start(t, s.supervisor(t), "vm", s.Exit(0))
	wait(t, p)
	wantErr(t, p.Signal(t.Context(), syscall.SIGTERM), os.ErrProcessDone)
}

func signalZero(t *testing.T, s *suite) {
	p := s.start(t, s.supervisor(t), "vm", s.Stay)
	signal(t, p, syscall.Signal(0))
	signal(t, p, syscall.Signal(0))
}

func noProgram(t *testing.T, s *suite) {
	sup := s.supervisor(t)
	spec := s.spec(t, "vm", []string{filepath.Join(t.TempDir(), "no-such-program")})
	if w, ok := sup.(*Fake); ok {
		w.world.FailStarts(os.ErrNotExist)
	}
	_, err := sup.Start(t.Context(), spec)
	wantErr(t, err, os.ErrNotExist)
	if ids, err := sup.FindAll(t.Context(), s.prefix); err != nil || len(ids) != 0 {
		t.Errorf("left %v, %v", ids, err)
	}
}

func brokenSpec(t *testing.T, s *suite) {
	sup := s.supervisor(t)
	for name, change := range map[string]func(*process.Spec){
		"name with a slash": func(p *process.Spec) { p.Name = "a/b" },
		"empty name":        func(p *process.Spec) { p.Name = "" },
		"no marker":         func(p *process.Spec) { p.Marker = "" },
		"no argv":           func(p *process.Spec) { p.Argv = nil },
		"relative output":   func(p *process.Spec) { p.Output = "out" },
		"relative dir":      func(p *process.Spec) { p.Dir = "dir" },
		"negative memory":   func(p *process.Spec) { p.MemoryMax = -1 },
		"env without value": func(p *process.Spec) { p.Env = []string{"KEY"} },
		"env sets marker":   func(p *process.Spec) { p.Env = []string{process.MarkerEnv + "=x"} },
		"NUL in argument":   func(p *process.Spec) { p.Argv = []string{"a", "b\x00c"} },
	} {
		spec := s.spec(t, "vm", s.Stay)
		change(&spec)
		if _, err := sup.Start(t.Context(), spec); !errors.Is(err, process.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
}

func outlives(t *testing.T, s *suite) {
	first := s.supervisor(t)
	p := s.start(t, first, "vm", s.Stay)
	if err := first.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	wantErr(t, p.Signal(t.Context(), syscall.SIGTERM), process.ErrClosed)
	again, err := s.supervisor(t).Adopt(t.Context(), p.Identity())
	if err != nil {
		t.Fatalf("adopt: %v", err)
	}
	if diff := cmp.Diff(p.Identity(), again.Identity()); diff != "" {
		t.Errorf("identity changed (-before +after):\n%s", diff)
	}
	signal(t, again, syscall.Signal(0))
}

func adoptedEnds(t *testing.T, s *suite) {
	first := s.supervisor(t)
	id := s.start(t, first, "vm", s.Stay).Identity()
	_ = first.Close()
	p, err := s.supervisor(t).Adopt(t.Context(), id)
	if err != nil {
		t.Fatalf("adopt: %v", err)
	}
	signal(t, p, syscall.SIGKILL)
	if exit := wait(t, p); exit.Known && exit.Signal != "SIGKILL" {
		t.Errorf("exit %+v is known but wrong", exit)
	}
	wantErr(t, p.Signal(t.Context(), syscall.SIGKILL), os.ErrProcessDone)
}

func adoptTwice(t *testing.T, s *suite) {
	sup := s.supervisor(t)
	p := s.start(t, sup, "vm", s.Stay)
	again, err := sup.Adopt(t.Context(), p.Identity())
	if err != nil {
		t.Fatalf("adopt: %v", err)
	}
	signal(t, again, syscall.SIGKILL)
	for _, q := range []process.Process{p, again} {
		if exit := wait(t, q); exit.Signal != "SIGKILL" {
			t.Errorf("exit %+v, want SIGKILL", exit)
		}
	}
}

// adoptChanged adopts a living process under a changed identity.
func (s *suite) adoptChanged(t *testing.T, change func(*process.Identity)) error {
	t.Helper()
	first := s.supervisor(t)
	id := s.start(t, first, "vm", s.Stay).Identity()
	_ = first.Close()
	change(&id)
	_, err := s.supervisor(t).Adopt(t.Context(), id)
	return err
}

func otherStart(t *testing.T, s *suite) {
	wantErr(t, s.adoptChanged(t, func(id *process.Identity) { id.StartTicks-- }), process.ErrGone)
}

func otherBoot(t *testing.T, s *suite) {
	wantErr(t, s.adoptChanged(t, func(id *process.Identity) { id.BootID = "other" }), process.ErrGone)
}

func otherMarker(t *testing.T, s *suite) {
	err := s.adoptChanged(t, func(id *process.Identity) { id.Marker = "other" })
	wantErr(t, err, process.ErrNotOurs)
	if errors.Is(err, process.ErrGone) {
		t.Error("a living process was called gone")
	}
}

func endedIsGone(t *testing.T, s *suite) {
	sup := s.supervisor(t)
	p := s.start(t, sup, "vm", s.Exit(0))
	wait(t, p)
	_, err := sup.Adopt(t.Context(), p.Identity())
	wantErr(t, err, process.ErrGone)
}

func incompleteIdentity(t *testing.T, s *suite) {
	sup := s.supervisor(t)
	for name, id := range map[string]process.Identity{
		"zero":            {},
		"pid 1":           {PID: 1, StartTicks: 1, BootID: "b", Marker: "m"},
		"no start time":   {PID: 1 << 21, BootID: "b", Marker: "m"},
		"no boot id":      {PID: 1 << 21, StartTicks: 1, Marker: "m"},
		"without marker":  {PID: 1 << 21, StartTicks: 1, BootID: "b"},
		"negative number": {PID: -5, StartTicks: 1, BootID: "b", Marker: "m"},
	} {
		if _, err := sup.Adopt(t.Context(), id); !errors.Is(err, process.ErrInvalid) || errors.Is(err, process.ErrGone) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
}

func foundByMarker(t *testing.T, s *suite) {
	first := s.supervisor(t)
	p := s.start(t, first, "vm", s.Stay)
	s.start(t, first, "vm-other", s.Stay)
	_ = first.Close()
	ids, err := s.supervisor(t).Find(t.Context(), s.prefix+"vm")
	if err != nil {
		t.Fatalf("find: %v", err)
	}
	if diff := cmp.Diff([]process.Identity{p.Identity()}, ids); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}

func foundByPrefix(t *testing.T, s *suite) {
	sup := s.supervisor(t)
	want := map[process.Identity]bool{}
	for i := range 3 {
		want[s.start(t, sup, "vm"+strconv.Itoa(i), s.Stay).Identity()] = true
	}
	wait(t, s.start(t, sup, "over", s.Exit(0)))
	ids, err := sup.FindAll(t.Context(), s.prefix)
	if err != nil {
		t.Fatalf("find all: %v", err)
	}
	got := map[process.Identity]bool{}
	for _, id := range ids {
		got[id] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}

func closedRefuses(t *testing.T, s *suite) {
	sup := s.supervisor(t)
	p := s.start(t, sup, "vm", s.Stay)
	if err := sup.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	if err := sup.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	spec := s.spec(t, "late", s.Stay)
	_, err := sup.Start(t.Context(), spec)
	wantErr(t, err, process.ErrClosed)
	_, err = sup.Adopt(t.Context(), p.Identity())
	wantErr(t, err, process.ErrClosed)
	if ids, err := s.supervisor(t).Find(t.Context(), spec.Marker); err != nil || len(ids) != 0 {
		t.Errorf("a closed supervisor left %v, %v", ids, err)
	}
}
