// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// How the VMMs are asked: one, and the next whenever the ones before fail or let wait, up to a number.
const (
	maxAsked    = 8
	askPatience = 200 * time.Millisecond
	askDeadline = 3 * time.Second // of all together
)

// VMMs is what is asked of those who hold the VMMs.
type VMMs interface {
	// Connected returns the machines to whose VMM there is a connection, in a stable order.
	Connected() []string
	// Ask has the VMM of a machine say something.
	Ask(ctx context.Context, id string) error
}

// VMMCheck is "vmms": a question to a VMM and back, each time to another one. A machine that is stuck is that
// machine's trouble: the check fails only when several were asked and none answered.
func VMMCheck(v VMMs) Check {
	r := &round{vmms: v, patience: askPatience, deadline: askDeadline}
	return Check{Name: "vmms", For: Live, Timeout: 2 * askDeadline, Background: true, Probe: r.ask}
}

// round goes from one VMM to the next.
type round struct {
	vmms     VMMs
	patience time.Duration
	deadline time.Duration

	mu   sync.Mutex
	next int
}

// pick returns the machines to ask, the first one first.
func (r *round) pick() []string {
	all := r.vmms.Connected()
	if len(all) == 0 {
		return nil
	}
	r.mu.Lock()
	start := r.next % len(all)
	r.next++
	r.mu.Unlock()
	var ids []string
	for i := range min(maxAsked, len(all)) {
		ids = append(ids, all[(start+i)%len(all)])
	}
	return ids
}

func (r *round) ask(ctx context.Context) error {
	ids := r.pick()
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.deadline)
	defer cancel() // the others need not answer any more
	answers := make(chan error, len(ids))
	timer := time.NewTicker(r.patience)
	defer timer.Stop()
	asked, failed := 0, 0
	var last error
	more := func() {
		if asked < len(ids) {
			id := ids[asked]
			asked++
			go func() { answers <- r.vmms.Ask(ctx, id) }()
		}
	}
	for more(); failed < len(ids); {
		select {
		case err := <-answers:
			if err == nil {
				return nil
			}
			last, failed = err, failed+1
			more()
		case <-timer.C:
			more()
		case <-ctx.Done():
			last, failed = ctx.Err(), len(ids)
		}
	}
	if asked < 2 {
		return nil
	}
	return fmt.Errorf("none of %d VMMs that were asked answers: %w", asked, last)
}
