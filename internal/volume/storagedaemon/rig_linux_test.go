// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package storagedaemon

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	stateID = "state-of-test"
	size    = 8 << 20
)

// life is one life of this program: a manager and its supervisor. Several lives share directories.
type life struct {
	*Manager
	supervisor process.Supervisor
	stop       func()

	mu   sync.Mutex
	told []string
}

// rig is what stays when the program ends.
type rig struct {
	t       *testing.T
	runtime string
	state   string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	if _, err := exec.LookPath("qemu-storage-daemon"); err != nil {
		t.Skip("SKIPPED, AND NOTHING IS PROVEN: qemu-storage-daemon is not installed (Debian: qemu-system-common)")
	}
	runtime, err := os.MkdirTemp("", "sd")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, runtime: runtime, state: t.TempDir()}
	t.Cleanup(func() { // whatever a failed test left, by its mark
		l := r.life()
		found, _ := l.supervisor.FindAll(context.Background(), r.id()+markRoom)
		for _, id := range found {
			_ = syscall.Kill(id.PID, syscall.SIGKILL)
		}
		l.stop()
		_ = os.RemoveAll(runtime)
	})
	return r
}

// id is of this test alone, so that tests do not see each other's daemons.
func (r *rig) id() string { return stateID + "-" + filepath.Base(r.runtime) }

func (r *rig) life() *life {
	r.t.Helper()
	supervisor, err := process.NewChild(process.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	l := &life{supervisor: supervisor}
	l.Manager, err = New(Options{
		Supervisor: supervisor, StateID: r.id(), RuntimeDir: r.runtime,
		Changed: func(_ volume.Ref, problem string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.told = append(l.told, problem)
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	l.stop = sync.OnceFunc(func() { l.Close(); _ = supervisor.Close() })
	r.t.Cleanup(l.stop)
	return l
}

// export is a file, made at the first call.
func (r *rig) export(machine, name string) Export {
	r.t.Helper()
	file := filepath.Join(r.state, machine+"."+name+".raw")
	if _, err := os.Stat(file); err != nil {
		if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	return Export{
		Ref: volume.Ref{MachineID: machine, Name: name}, Dir: filepath.Join(r.state, machine, name), Identity: "one",
		Node: map[string]any{"driver": "file", "filename": file},
	}
}

func (r *rig) serve(l *life, e Export) Served {
	r.t.Helper()
	served, err := l.Serve(r.t.Context(), e)
	if err != nil {
		r.t.Fatal(err)
	}
	return served
}

// pids are the living daemons of a volume.
func (r *rig) pids(l *life, ref volume.Ref) []int {
	r.t.Helper()
	found, err := l.supervisor.FindAll(r.t.Context(), l.prefix(ref))
	if err != nil {
		r.t.Fatal(err)
	}
	var pids []int
	for _, id := range found {
		pids = append(pids, id.PID)
	}
	return pids
}

func (r *rig) pid(l *life, ref volume.Ref) int {
	r.t.Helper()
	pids := r.pids(l, ref)
	if len(pids) != 1 {
		r.t.Fatalf("%d daemons of %v", len(pids), ref)
	}
	return pids[0]
}

// nothing expects that a volume left no process, socket or file.
func (r *rig) nothing(l *life, e Export) {
	r.t.Helper()
	if pids := r.pids(l, e.Ref); len(pids) > 0 {
		r.t.Errorf("processes left: %v", pids)
	}
	for _, dir := range []string{l.socketDir(e.Ref), e.Dir} {
		if entries, _ := os.ReadDir(dir); len(entries) > 0 {
			r.t.Errorf("%s still has %v", dir, entries)
		}
	}
}

func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("never: %s", what)
		}
	}
}

func (l *life) heard() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.told...)
}

func contains(all []string, part string) bool {
	for _, one := range all {
		if strings.Contains(one, part) {
			return true
		}
	}
	return false
}
