// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package storagedaemon

import (
	"context"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

func TestADaemonThatServesIsTakenUpAlthoughItsMediumIsAway(t *testing.T) {
	r := newRig(t)
	e, first := r.export("m1", "data"), r.life()
	if _, found, err := first.Adopt(t.Context(), e); found || err != nil {
		t.Fatalf("found %t, %v, and there is none", found, err)
	}
	before := r.serve(first, e)
	pid := r.pid(first, e.Ref)
	first.stop()
	second := r.life()
	file := e.Node["filename"].(string)
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, found, err := second.Adopt(t.Context(), e)
		if err != nil || !found || got != before || r.pid(second, e.Ref) != pid {
			t.Fatalf("%+v became %+v, found %t, %v", before, got, found, err)
		}
	}
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil { // and it is watched over
		t.Fatal(err)
	}
	r.until("another serves", func() bool { h := second.heard(); return len(h) > 1 && h[len(h)-1] == "" })
	if err := second.Stop(t.Context(), e.Ref, e.Dir); err != nil {
		t.Fatal(err)
	}
	r.nothing(second, e)
}

func TestADaemonOfAnotherVersionServesOnAndOneOfAnotherVolumeDoesNot(t *testing.T) {
	r := newRig(t)
	e, l := r.export("m1", "data"), r.life()
	e.Identity = "ceph pool/image and what this version does not know"
	r.serve(l, e)
	pid := r.pid(l, e.Ref)
	for _, step := range []struct {
		identity string
		same     bool
	}{{"v1 pool/image", true}, {"v1 pool/other", false}, {"v1 pool/image", true}} {
		l.stop()
		l = r.life()
		e.Identity = step.identity
		_, found, err := l.Adopt(t.Context(), e)
		if found != step.same || !step.same && !machine.IsKind(err, machine.FailedPrecondition) || r.pid(l, e.Ref) != pid {
			t.Errorf("%s: found %t, %v", step.identity, found, err)
		}
	}
	if err := l.Stop(t.Context(), e.Ref, e.Dir); err != nil {
		t.Fatal(err)
	}
}

func TestTheDaemonIsTheEldestOfItsMark(t *testing.T) {
	want := process.Identity{PID: 7, StartTicks: 1}
	for _, found := range [][]process.Identity{
		{{PID: 9, StartTicks: 3}, want}, {want, {PID: 9, StartTicks: 3}}, {{PID: 8, StartTicks: 1}, want, {PID: 2, StartTicks: 2}},
	} {
		if got := eldest(found); got != want {
			t.Errorf("%+v of %+v", got, found)
		}
	}
}

// forgetful starts a process and then takes the directory of its record away, until it is asked what there is.
type forgetful struct {
	process.Supervisor
	dir    string
	starts atomic.Int32
}

func (f *forgetful) Start(ctx context.Context, spec process.Spec) (process.Process, error) {
	proc, err := f.Supervisor.Start(ctx, spec)
	if f.starts.Add(1) == 2 {
		_ = os.Rename(f.dir, f.dir+".away")
	}
	return proc, err
}

func (f *forgetful) FindAll(ctx context.Context, prefix string) ([]process.Identity, error) {
	_ = os.Rename(f.dir+".away", f.dir)
	return f.Supervisor.FindAll(ctx, prefix)
}

func TestADaemonThatCouldNotBeRecordedIsFoundByTheNextTry(t *testing.T) {
	r := newRig(t)
	e, l := r.export("m1", "data"), r.life()
	f := &forgetful{Supervisor: l.supervisor, dir: e.Dir}
	l.o.Supervisor = f
	r.serve(l, e)
	if err := syscall.Kill(r.pid(l, e.Ref), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.until("it is served again", func() bool { h := l.heard(); return len(h) > 1 && h[len(h)-1] == "" })
	if n := f.starts.Load(); n != 2 || len(r.pids(l, e.Ref)) != 1 {
		t.Errorf("%d daemons were started, %v live", n, r.pids(l, e.Ref))
	}
	if err := l.Stop(t.Context(), e.Ref, e.Dir); err != nil {
		t.Fatal(err)
	}
	r.nothing(l, e)
}
