// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

const (
	// grace is how long a process may take to end after SIGTERM.
	grace = 20 * time.Second
	// toldOfLog is how much of a log is told when a test fails; the whole file is kept.
	toldOfLog = 6000
)

// Process is a program that ends with the test process. Its output is appended to a file.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

// StartProcess runs a program until Stop or Kill, or until the test process ends, in whatever way.
func StartProcess(logFile, program string, env []string, args ...string) (*Process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = log.Close() }()
	p := &Process{name: filepath.Base(program), log: logFile, cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = endsWithParent()
	started := make(chan error, 1)
	go func() {
		// The kernel sends the signal of endsWithParent when the thread ends that started the process, so that this
		// one stays until the process has.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	return p, nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill ends the process as a crash does, and waits until it has.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the process to end, waits until it has, and returns how it did. One that does not is killed.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(grace):
		p.Kill()
		return fmt.Errorf("%s did not end within %v of SIGTERM", p.name, grace)
	}
}

// Log is the end of what the process printed.
func (p *Process) Log() string { return tail(p.log) }

func tail(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	if len(raw) > toldOfLog {
		raw = raw[len(raw)-toldOfLog:]
		if i := bytes.IndexByte(raw, '\n'); i >= 0 {
			raw = raw[i+1:]
		}
	}
	return string(raw)
}

// eventually waits until done says so, and fails the test with its last reason otherwise, or as soon as one of the
// processes has ended that all depends on.
func eventually(t testing.TB, what string, within time.Duration, needs []*Process, done func() error) {
	t.Helper()
	end := time.Now().Add(within)
	for {
		err := done()
		if err == nil {
			return
		}
		for _, p := range needs {
			if !p.Running() {
				t.Fatalf("%s: %s has ended: %v\n%s", what, p.name, p.err, p.Log())
			}
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s: %v", within, what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
