// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// vmm is the process: one worker executes everything that touches the fields below it, API calls,
// guest actions and signals alike, one after the other.
type vmm struct {
	dialect   dialect
	script    Script
	mon       *monitor
	log       *slog.Logger
	stderr    io.Writer
	stayAlive bool // --no-shutdown
	endpoints map[string]endpoint
	faults    *faultList

	work    chan func()
	done    chan struct{} // closed when the worker has ended
	aborted atomic.Bool   // a call found the worker gone: its answer is lost

	cfg      *VMConfig
	console  *consoles // nil: made at the next boot
	vm       *machine  // nil: not booted
	exitCode *int      // set: the worker ends

	mu    sync.Mutex // guards what Control asks for
	facts Facts
}

func newVMM(d dialect, script Script, mon *monitor, log *slog.Logger, stderr io.Writer) *vmm {
	return &vmm{
		dialect: d, script: script, mon: mon, log: log, stderr: stderr,
		endpoints: endpoints(), faults: newFaultList(script.Faults),
		work: make(chan func()), done: make(chan struct{}),
	}
}

// do runs f on the worker and waits for it.
func (v *vmm) do(f func()) {
	finished := make(chan struct{})
	select {
	case v.work <- func() { defer close(finished); f() }:
		<-finished
	case <-v.done:
		v.aborted.Store(true)
	}
}

// post runs f on the worker some time.
func (v *vmm) post(f func()) {
	go func() {
		select {
		case v.work <- f:
		case <-v.done:
		}
	}()
}

// after runs f on the worker after ms milliseconds.
func (v *vmm) after(ms int, f func()) *time.Timer {
	return time.AfterFunc(time.Duration(ms)*time.Millisecond, func() { v.post(f) })
}

// run is the worker; it returns the exit code.
func (v *vmm) run() int {
	defer close(v.done)
	for v.exitCode == nil {
		f := <-v.work
		f()
	}
	return *v.exitCode
}

func (v *vmm) exit(code int) {
	if v.exitCode == nil {
		v.exitCode = &code
	}
}

func (v *vmm) record(call string) {
	v.log.Info("API call", "call", call)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.facts.Calls = append(v.facts.Calls, call)
}

func (v *vmm) ping() ([]byte, *chainError) {
	build := v.script.BuildVersion
	if build == "" {
		build = v.dialect.build()
	}
	b, err := json.Marshal(struct {
		Build    string   `json:"build_version"`
		Version  string   `json:"version"`
		PID      int      `json:"pid"`
		Features []string `json:"features"`
	}{build, v.dialect.semver(), os.Getpid(), []string{"io_uring", "kvm"}})
	if err != nil {
		return nil, failed(err.Error())
	}
	return b, nil
}

// create stores the configuration and opens the consoles. It validates nothing. When a console cannot
// be opened the configuration stays all the same.
func (v *vmm) create(cfg *VMConfig) *chainError {
	if v.cfg != nil {
		return errAlreadyCreated()
	}
	for i := range cfg.Net {
		cfg.Net[i].Fds = nil // numbers in JSON mean nothing, and create takes no descriptors
	}
	for i := range cfg.Devices {
		cfg.Devices[i].Fd = nil
	}
	v.cfg = cfg
	return v.openConsoles()
}

func (v *vmm) openConsoles() *chainError {
	c, err := openConsoles(v.cfg)
	if err != nil {
		return err.under("Error creating console devices")
	}
	v.console = c
	return nil
}

func (v *vmm) dropConsoles() {
	v.console.close()
	v.console = nil
}

func (v *vmm) boot() *chainError {
	if v.vm != nil {
		return errAlreadyCreated()
	}
	v.mon.emit("vm", "booting")
	if v.cfg == nil {
		return errMissingConfig()
	}
	if v.console == nil {
		if err := v.openConsoles(); err != nil {
			return err
		}
	}
	v.busy(v.script.BootDelayMS)
	m, err := v.newMachine()
	if err != nil {
		return err
	}
	// From here on a failure leaves half a machine behind: present, but not running.
	v.vm = m
	if err := m.boot(); err != nil {
		return err
	}
	v.mon.emit("vm", "booted")
	return nil
}

// busy keeps the worker for a while.
func (v *vmm) busy(ms int) {
	if ms > 0 {
		time.Sleep(time.Duration(ms) * time.Millisecond)
	}
}

func (v *vmm) shutdown() *chainError {
	if v.vm == nil {
		return errNotRunning()
	}
	v.stopMachine()
	v.mon.emit("vm", "shutdown")
	return nil
}

func (v *vmm) stopMachine() {
	v.vm.close()
	v.vm = nil
	v.dropConsoles()
}

func (v *vmm) reboot() *chainError {
	v.mon.emit("vm", "rebooting")
	if v.vm == nil {
		return errNotCreated()
	}
	v.stopMachine()
	v.busy(v.script.BootDelayMS)
	if err := v.openConsoles(); err != nil {
		return err
	}
	m, err := v.newMachine()
	if err != nil {
		return err
	}
	if err := m.boot(); err != nil {
		m.close()
		return err
	}
	v.vm = m
	v.mon.emit("vm", "rebooted")
	return nil
}

func (v *vmm) delete() *chainError {
	if v.cfg == nil {
		return nil
	}
	if v.vm != nil {
		if err := v.shutdown(); err != nil {
			return err
		}
	}
	for _, n := range v.cfg.Net {
		n.closeFDs()
	}
	v.cfg = nil
	v.mon.emit("vm", "deleted")
	return nil
}

// vmmShutdown also ends the worker, like a signal and like a guest that powers off.
func (v *vmm) vmmShutdown() *chainError {
	if err := v.delete(); err != nil {
		return err
	}
	v.mon.emit("vmm", "shutdown")
	v.exit(0)
	return nil
}

func (v *vmm) pause() *chainError {
	if v.vm == nil {
		return errNotRunning()
	}
	v.mon.emit("vm", "pausing")
	if v.vm.state == statePaused {
		return failed("Cannot pause VM", "Failed to pause migratable component",
			"Invalid transition: InvalidStateTransition(Paused, Paused)")
	}
	v.vm.state = statePaused
	v.mon.emit("vm", "paused")
	return nil
}

func (v *vmm) resume() *chainError {
	if v.vm == nil {
		return errNotRunning()
	}
	v.mon.emit("vm", "resuming")
	if v.vm.state != statePaused {
		return failed("Cannot resume VM", "Failed to resume migratable component",
			fmt.Sprintf("Invalid transition: InvalidStateTransition(%s, Running)", v.vm.state))
	}
	v.vm.state = stateRunning
	v.mon.emit("vm", "resumed")
	v.vm.guest.wake()
	return nil
}

func (v *vmm) powerButton() *chainError {
	if v.vm == nil {
		return errNotRunning()
	}
	v.mu.Lock()
	v.facts.PowerButton++
	v.mu.Unlock()
	v.vm.guest.powerButton()
	return nil
}

func (v *vmm) nmi() *chainError {
	if v.vm == nil {
		return errNotRunning()
	}
	return nil
}

// guestPowerOff is what ACPI S5 does to the process.
func (v *vmm) guestPowerOff() {
	if v.vm == nil {
		return
	}
	if v.stayAlive {
		_ = v.shutdown()
		return
	}
	_ = v.vmmShutdown()
}

// guestReset rebuilds the machine; when that fails the process exits 1 and leaves its API socket.
func (v *vmm) guestReset() {
	if v.vm == nil {
		return
	}
	if v.script.FailReset {
		v.mon.emit("vm", "rebooting")
		v.stopMachine()
		v.die(failed("Error from device manager", "Cannot open disk path"))
		return
	}
	if err := v.reboot(); err != nil {
		v.die(err)
	}
}

// die ends the process with an error chain on stderr.
func (v *vmm) die(err *chainError) {
	printChain(v.stderr, err.under("VMM thread exited with error", "Error rebooting VM").texts)
	v.exit(1)
}

// printChain prints a fatal error as the command line does.
func printChain(w io.Writer, texts []string) {
	var b bytes.Buffer
	b.WriteString("Error: Cloud Hypervisor exited with the following ")
	if len(texts) == 1 {
		fmt.Fprintf(&b, "error:\n  %s\n", texts[0])
	} else {
		b.WriteString("chain of errors:\n")
		for i, t := range texts {
			fmt.Fprintf(&b, "  %d: %s\n", i, t)
		}
	}
	_, _ = w.Write(b.Bytes())
}

// killSelf ends the process by a signal, past the handlers of the Go runtime.
func killSelf(sig syscall.Signal) {
	resetSignal(sig)
	_ = syscall.Kill(os.Getpid(), sig)
	// Delivery may be a moment away; nothing may be answered meanwhile.
	time.Sleep(time.Minute)
}
