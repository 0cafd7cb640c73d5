// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// probe runs one check, at most once at a time.
type probe struct {
	registry *Registry
	check    Check

	mu      sync.Mutex
	last    Result
	have    bool
	running chan struct{} // closed when the run under way ends; nil if there is none
	started time.Time     // of the run under way
}

// begin returns a result that may be shown as it is. Else it has seen to it that a run is under way.
func (p *probe) begin() (r Result, fresh bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.registry.now()
	age := now.Sub(p.last.At)
	if p.have && p.running == nil && age <= p.check.MaxAge {
		return p.last, true
	}
	if p.running == nil {
		p.startLocked(now)
	}
	late := now.Sub(p.started) > p.check.Timeout
	if p.check.Background && p.have && !late && age <= p.check.MaxAge+staleAfter {
		return p.last, true
	}
	return Result{}, false
}

func (p *probe) startLocked(now time.Time) {
	done := make(chan struct{})
	p.running, p.started = done, now
	r := p.registry
	r.mu.Lock() // not waited for once the registry is being closed
	closed := r.closed
	if !closed {
		r.runs.Add(1)
	}
	r.mu.Unlock()
	if closed {
		p.noteLocked(now, now, fmt.Errorf("the daemon is stopping"))
		p.running = nil
		close(done)
		return
	}
	go func() {
		defer r.runs.Done()
		ctx, cancel := context.WithTimeout(r.ctx, p.check.Timeout)
		defer cancel()
		err := safely(ctx, p.check.Probe)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.noteLocked(now, r.now(), err)
		p.running = nil
		close(done)
	}()
}

// safely makes a panic of a check its failure: asking must not end the daemon.
func safely(ctx context.Context, ask func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the check panicked: %v", p)
		}
	}()
	return ask(ctx)
}

func (p *probe) noteLocked(started, ended time.Time, err error) {
	r := Result{
		Name: p.check.Name, OK: err == nil, At: ended, Since: ended, Took: ended.Sub(started).Seconds(),
	}
	if err != nil {
		r.Error = err.Error()
	}
	changed := !p.have || p.last.OK != r.OK
	if !changed {
		r.Since = p.last.Since
	}
	switch log := p.registry.log; {
	case changed && errors.Is(err, errShut) && !p.have: // asked while the daemon starts, which is no fault
		log.Info("health check waits", "check", r.Name, "for", err)
	case changed && !r.OK:
		log.Warn("health check fails", "check", r.Name, "error", err)
	case changed && p.have:
		log.Info("health check is well again", "check", r.Name)
	}
	p.last, p.have = r, true
}

// wait returns what the run under way says, or that it says nothing in time.
func (p *probe) wait(ctx context.Context) Result {
	p.mu.Lock()
	done, started := p.running, p.started
	p.mu.Unlock()
	if done != nil {
		timer := time.NewTimer(p.check.Timeout - p.registry.now().Sub(started))
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	last, ok := p.known()
	if !ok { // the asker went away before the first answer
		return Result{Name: p.check.Name, Error: "not asked to the end", At: p.registry.now()}
	}
	return last
}

// known is the last result, or the run under way if that is late.
func (p *probe) known() (Result, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.registry.now()
	took := now.Sub(p.started)
	if p.running == nil || took < p.check.Timeout {
		return p.last, p.have
	}
	late := Result{
		Name: p.check.Name, Error: fmt.Sprintf("no answer within %s", p.check.Timeout), At: now, Since: p.started, Took: took.Seconds(),
	}
	if p.have && !p.last.OK {
		late.Since = p.last.Since
	}
	return late, true
}
