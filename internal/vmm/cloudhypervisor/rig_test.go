// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech"
)

// patience is generous: the machines that run tests are busy.
const patience = time.Minute

// rig is a machine whose VMM misbehaves.
type rig struct {
	*testing.T
	driver     *cloudhypervisor.Driver
	supervisor process.Supervisor
	cfg        vmm.Config
	proc       process.Process
	vm         vmm.VM
}

// newRef makes directories that are short enough for sockets.
func newRef(t *testing.T) vmm.Ref {
	t.Helper()
	dir, err := os.MkdirTemp("", "ch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ref := vmm.Ref{MachineID: uuid.NewString(), RuntimeDir: filepath.Join(dir, "r"), StateDir: filepath.Join(dir, "s")}
	if err := os.Mkdir(ref.StateDir, 0o750); err != nil {
		t.Fatal(err)
	}
	return ref
}

// newRig launches a fake and connects to it.
func newRig(t *testing.T, script fakech.Script) *rig {
	t.Helper()
	script.Control = true
	r := rigFor(t, newFake(t, script), fakeConfig)
	r.launch()
	return r
}

func rigFor(t *testing.T, driver *cloudhypervisor.Driver, config func(*testing.T, vmm.Ref) vmm.Config) *rig {
	t.Helper()
	supervisor, err := process.NewChild(process.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { supervisor.Close() })
	return &rig{T: t, driver: driver, supervisor: supervisor, cfg: config(t, newRef(t))}
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.Cleanup(cancel)
	return ctx
}

func (r *rig) must(doing string, err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("%s: %v", doing, err)
	}
}

func (r *rig) wantKind(doing string, err error, kind machine.Kind) {
	r.Helper()
	if !machine.IsKind(err, kind) {
		r.Fatalf("%s: error %v is %v, want %v", doing, err, machine.KindOf(err), kind)
	}
}

// launch starts the VMM, which ends with the test.
func (r *rig) launch() {
	r.Helper()
	spec, err := r.driver.Prepare(r.ctx(), r.cfg)
	r.must("prepare", err)
	spec.Marker = r.cfg.MachineID
	proc, err := r.supervisor.Start(r.ctx(), spec)
	r.must("start", err)
	r.proc = proc
	r.Cleanup(func() {
		if err := proc.Signal(context.Background(), syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			r.Error(err)
		}
		<-proc.Done()
	})
	r.connect()
}

func (r *rig) connect() {
	r.Helper()
	vm, err := r.driver.Connect(r.ctx(), r.cfg.Ref)
	r.must("connect", err)
	r.Cleanup(func() { vm.Close() })
	r.vm = vm
}

func (r *rig) create() {
	r.Helper()
	r.must("create", r.vm.Create(r.ctx(), r.cfg))
}

func (r *rig) boot() {
	r.Helper()
	r.create()
	r.must("boot", r.vm.Boot(r.ctx()))
}

func (r *rig) wantState(want vmm.State) vmm.Observation {
	r.Helper()
	o, err := r.vm.Inspect(r.ctx())
	r.must("inspect", err)
	if o.State != want {
		r.Fatalf("the state is %s, want %s", o.State, want)
	}
	return o
}

func (r *rig) awaitEvent(want vmm.EventKind) vmm.Event {
	r.Helper()
	timeout := time.After(patience)
	for {
		select {
		case e, ok := <-r.vm.Events():
			if !ok {
				r.Fatalf("the events ended, none was %s", want)
			}
			if e.Kind == want {
				return e
			}
		case <-timeout:
			r.Fatalf("no event %s", want)
		}
	}
}

func (r *rig) awaitEnd() process.Exit {
	r.Helper()
	select {
	case <-r.proc.Done():
	case <-time.After(patience):
		r.Fatal("the VMM does not end")
	}
	return r.proc.Exit()
}

// raw speaks to the VMM behind the driver's back.
func (r *rig) raw() *api.Client {
	r.Helper()
	c, err := api.New(api.Options{Socket: filepath.Join(r.cfg.RuntimeDir, "api.sock")})
	r.must("make client", err)
	r.Cleanup(c.Close)
	return c
}

func (r *rig) arm(f fakech.Fault) {
	r.Helper()
	r.must("arm fault", control(r.cfg.Ref).Arm(f))
}

// relaunch ends the VMM and starts another one.
func (r *rig) relaunch() {
	r.Helper()
	r.must("shut down", r.vm.Shutdown(r.ctx()))
	r.awaitEnd()
	r.launch()
}

// calls returns the API calls that the fake got.
func (r *rig) calls() []string {
	r.Helper()
	facts, err := control(r.cfg.Ref).Facts()
	r.must("ask for facts", err)
	return facts.Calls
}

// staleSocket leaves a socket behind as a crash does.
func staleSocket(t *testing.T, path string) {
	t.Helper()
	l := listen(t, path)
	l.SetUnlinkOnClose(false)
	l.Close()
}

func listen(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}
