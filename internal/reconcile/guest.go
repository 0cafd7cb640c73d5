// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// ConditionGuestAgent is the condition that tells what a guest says of itself through its agent.
const ConditionGuestAgent = "GuestAgent"

// GuestFacts is what a guest says of itself. Nothing of it is more than hearsay.
type GuestFacts struct {
	OS   string // kind and version of its system, short, such as "debian 12"
	Text string // system, host name and addresses, in words
}

// guestAsks bounds how many agents are asked at once, guestCall how long one may take.
const (
	guestAsks = 4
	guestCall = 10 * time.Second
)

// guestInfo asks agents beside the workers, which must not wait for guests that do not answer.
type guestInfo struct {
	asks  chan struct{}
	asked map[string]time.Time // by machine; guarded by the reconciler's lock
}

// lookAfter does for a running machine, once a resync, what needs no hurry: it bounds the logs of the VMM, asks the
// guest's agent and shows the answer as a condition.
func (r *Reconciler) lookAfter(ctx context.Context, id string) {
	s, now := r.session(id), r.o.Now()
	if s == nil {
		return
	}
	r.mu.Lock()
	age := now.Sub(r.guests.asked[id])
	due := age >= r.o.Resync || age < 0
	if due {
		r.guests.asked[id] = now
	}
	r.mu.Unlock()
	if !due {
		return
	}
	r.capOutput(id)
	vm := s.connected()
	if r.o.GuestInfo == nil || vm == nil {
		return
	}
	r.background.Go(func() { r.askGuest(ctx, id, vm) })
}

func (r *Reconciler) askGuest(ctx context.Context, id string, vm vmm.VM) {
	select {
	case r.guests.asks <- struct{}{}:
		defer func() { <-r.guests.asks }()
	case <-ctx.Done():
		return
	}
	call, cancel := context.WithTimeout(ctx, guestCall)
	defer cancel()
	facts, err := r.o.GuestInfo(call, vm)
	if ctx.Err() != nil {
		return
	}
	c := machine.Condition{
		Type: ConditionGuestAgent, Status: machine.ConditionTrue, Reason: "Answers", Message: facts.Text, LastTransition: r.o.Now(),
	}
	if err != nil { // no more is said, since the words of a failure change from one time to the next
		c.Status, c.Reason, c.Message = machine.ConditionFalse, "DoesNotAnswer", ""
		r.o.Logger.Debug("guest agent does not answer", "machine", id, "error", err)
	}
	_, failure := r.o.Store.UpdateRecord(ctx, id, func(rec *machine.Record) error {
		rec.SetCondition(c)
		if err == nil {
			rec.GuestOS = facts.OS
		}
		return nil
	})
	if failure != nil && !machine.IsKind(failure, machine.NotFound) {
		r.o.Logger.Warn("what the guest says of itself is not recorded", "machine", id, "error", failure)
	}
}
