// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// faultList holds the armed faults; the first that matches a call is used.
type faultList struct {
	mu   sync.Mutex
	list []Fault
}

func newFaultList(armed []Fault) *faultList {
	l := &faultList{}
	for _, f := range armed {
		l.arm(f)
	}
	return l
}

func (l *faultList) arm(f Fault) {
	if f.Count == 0 {
		f.Count = 1
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, f)
}

func (l *faultList) disarm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = nil
}

// take uses up one firing of the fault for an endpoint, nil if there is none.
func (l *faultList) take(name string) *Fault {
	return l.match(name, func(f *Fault) bool { return f.Kind != FaultReset })
}

// reset reports whether the connection of a call is to be reset.
func (l *faultList) reset(name string) bool {
	return l.match(name, func(f *Fault) bool { return f.Kind == FaultReset }) != nil
}

func (l *faultList) match(name string, want func(*Fault) bool) *Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.list {
		f := l.list[i]
		if f.Endpoint != "" && f.Endpoint != name || !want(&f) {
			continue
		}
		if l.list[i].Count--; l.list[i].Count == 0 {
			l.list = append(l.list[:i], l.list[i+1:]...)
		}
		return &f
	}
	return nil
}

// faultBefore does what goes wrong before a call, and reports whether the call is over by that.
func (v *vmm) faultBefore(f *Fault) (outcome, bool) {
	if f == nil {
		return outcome{}, false
	}
	switch f.Kind {
	case FaultExit:
		os.Exit(0)
	case FaultKill:
		sig := syscall.Signal(f.Signal)
		if sig == 0 {
			sig = syscall.SIGKILL
		}
		killSelf(sig)
	case FaultHang:
		v.do(func() { v.busy(f.delay()) })
	case FaultError:
		return outcome{resp: response{status: f.Status, body: []byte(f.Body)}}, true
	}
	return outcome{}, false
}

// faultAfter does what goes wrong between a call and its answer.
func (v *vmm) faultAfter(f *Fault, out *outcome) {
	if v.aborted.Load() {
		out.drop = true
	}
	if f == nil {
		return
	}
	switch f.Kind {
	case FaultExitAfter:
		os.Exit(0)
	case FaultClose:
		out.drop = true
	case FaultSilence:
		select {
		case <-time.After(time.Duration(f.delay()) * time.Millisecond):
		case <-v.done:
		}
	}
}

// delay defaults to ten seconds.
func (f *Fault) delay() int {
	if f.DelayMS == 0 {
		return 10000
	}
	return f.DelayMS
}
