// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmmtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

// bench is one machine under test.
type bench struct {
	*testing.T
	s      Setup
	driver vmm.Driver
	cfg    vmm.Config
	proc   process.Process // nil until launched
	vm     vmm.VM          // nil until connected
	tty    *console        // nil until booted
	marker string
	boots  int // how often BootText was awaited
}

// newBench makes directories and a driver; all that it starts ends with the test.
func newBench(t *testing.T, s Setup) *bench {
	t.Helper()
	// Not t.TempDir: its path is too long for a socket.
	dir, err := os.MkdirTemp("", "vmm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	id := uuid.NewString()
	ref := vmm.Ref{MachineID: id, RuntimeDir: filepath.Join(dir, "r"), StateDir: filepath.Join(dir, "s")}
	if err := os.Mkdir(ref.StateDir, 0o750); err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, s: s, marker: "vmmtest/" + id}
	t.Cleanup(b.end)
	b.driver = s.Driver(t)
	b.cfg = s.Config(t, ref)
	b.cfg.Ref = ref
	return b
}

// end leaves no process behind.
func (b *bench) end() {
	b.disconnect()
	if b.proc != nil {
		b.kill(b.proc)
	}
	if b.Failed() {
		b.showLogs()
	}
}

func (b *bench) kill(p process.Process) {
	ctx, cancel := context.WithTimeout(context.Background(), b.s.Patience)
	defer cancel()
	if err := p.Signal(ctx, syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		b.Errorf("kill VMM: %v", err)
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		b.Errorf("the VMM %d outlives its kill", p.Identity().PID)
	}
}

func (b *bench) showLogs() {
	for _, pattern := range []string{"*.log", "output"} {
		files, _ := filepath.Glob(filepath.Join(b.cfg.StateDir, pattern))
		for _, f := range files {
			if text, err := os.ReadFile(f); err == nil && len(text) > 0 {
				b.Logf("%s:\n%.8000s", filepath.Base(f), text)
			}
		}
	}
}

// ctx is a context for one step.
func (b *bench) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), b.s.Patience)
	b.Cleanup(cancel)
	return ctx
}

func (b *bench) must(doing string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", doing, err)
	}
}

func (b *bench) wantKind(doing string, err error, kinds ...machine.Kind) {
	b.Helper()
	for _, k := range kinds {
		if machine.IsKind(err, k) {
			return
		}
	}
	b.Errorf("%s: error %v is %v, want one of %v", doing, err, machine.KindOf(err), kinds)
}

// launch prepares and starts the VMM.
func (b *bench) launch() {
	b.Helper()
	spec, err := b.driver.Prepare(b.ctx(), b.cfg)
	b.must("prepare", err)
	spec.Marker = b.marker
	spec.Output = filepath.Join(b.cfg.StateDir, "output")
	b.proc, err = b.s.Supervisor.Start(b.ctx(), spec)
	b.must("start VMM", err)
}

// connect connects as the reconciler does: until the VMM answers or ends.
func (b *bench) connect() {
	b.Helper()
	ctx, cancel := context.WithCancel(b.ctx())
	defer cancel()
	go func(ended <-chan struct{}) {
		select {
		case <-ended:
			cancel()
		case <-ctx.Done():
		}
	}(b.proc.Done())
	vm, err := b.driver.Connect(ctx, b.cfg.Ref)
	b.must("connect", err)
	b.vm = vm
}

func (b *bench) disconnect() {
	if b.tty != nil {
		b.tty.close()
		b.tty = nil
	}
	if b.vm != nil {
		if err := b.vm.Close(); err != nil {
			b.Errorf("close connection: %v", err)
		}
		b.vm = nil
	}
}

// start launches, connects and creates.
func (b *bench) start() {
	b.Helper()
	b.launch()
	b.connect()
	b.must("create", b.vm.Create(b.ctx(), b.cfg))
}

// up starts and boots, and waits for the guest.
func (b *bench) up() Running {
	b.Helper()
	b.start()
	b.must("boot", b.vm.Boot(b.ctx()))
	return b.awaitGuest()
}

// awaitGuest waits for the next BootText.
func (b *bench) awaitGuest() Running {
	b.Helper()
	if b.tty == nil {
		b.tty = openConsole(b.vm.Console().Socket)
	}
	b.boots++
	b.must("wait for the guest", b.tty.await(b.ctx(), b.s.BootText, b.boots))
	return b.running()
}

// running is the guest that is up, with its console connected anew if a restart of the daemon closed it.
func (b *bench) running() Running {
	b.Helper()
	if b.tty == nil {
		b.tty = openConsole(b.vm.Console().Socket)
		b.must("connect to the console", b.tty.connected(b.ctx()))
	}
	tty := b.tty
	return Running{Ref: b.cfg.Ref, Console: tty, Await: func(ctx context.Context, text string) error {
		return tty.await(ctx, text, 1)
	}}
}

func (b *bench) inspect() vmm.Observation {
	b.Helper()
	o, err := b.vm.Inspect(b.ctx())
	b.must("inspect", err)
	return o
}

func (b *bench) wantState(want ...vmm.State) vmm.Observation {
	b.Helper()
	o := b.inspect()
	for _, s := range want {
		if o.State == s {
			return o
		}
	}
	b.Fatalf("the state is %s, want %v", o.State, want)
	return o
}

// awaitState waits for a state that an event or the guest's own doing brings.
func (b *bench) awaitState(want vmm.State) {
	b.Helper()
	for deadline := time.Now().Add(b.s.Patience); ; {
		o := b.inspect()
		if o.State == want {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("the state stays %s, want %s", o.State, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// awaitEvent reads events until one of the kind comes.
func (b *bench) awaitEvent(want vmm.EventKind) vmm.Event {
	b.Helper()
	var seen []vmm.EventKind
	timeout := time.After(b.s.Patience)
	for {
		select {
		case e, ok := <-b.vm.Events():
			if !ok {
				b.Fatalf("the events ended after %v, none was %s", seen, want)
			}
			if e.Kind == want {
				if e.At.IsZero() {
					b.Errorf("event %s has no time", e.Kind)
				}
				return e
			}
			seen = append(seen, e.Kind)
		case <-timeout:
			b.Fatalf("no event %s but %v", want, seen)
		}
	}
}

// wantSameProcess is that the VMM lives and is the one that was started.
func (b *bench) wantSameProcess() {
	b.Helper()
	select {
	case <-b.proc.Done():
		b.Fatalf("the VMM ended: %+v", b.proc.Exit())
	default:
	}
	if o := b.inspect(); o.PID != 0 && o.PID != b.proc.Identity().PID {
		b.Errorf("the VMM says it is process %d, started was %d", o.PID, b.proc.Identity().PID)
	}
}

// awaitEnd waits for the end of the VMM's process.
func (b *bench) awaitEnd() {
	b.Helper()
	select {
	case <-b.proc.Done():
	case <-time.After(b.s.Patience):
		b.Fatalf("the VMM does not end")
	}
}
