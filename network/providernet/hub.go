// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package providernet

import (
	"context"
	"sync"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// hub passes events to all who follow, merges them for the slow, and keeps one worker running while there is anybody.
type hub struct {
	mu        sync.Mutex
	followers map[*follower]bool
	stop      context.CancelFunc
	stopped   chan struct{} // closed when the worker has ended
}

type follower struct {
	wake chan struct{}

	mu   sync.Mutex
	refs map[network.Ref]bool
}

// tell wakes the interface's followers; it never waits.
func (h *hub) tell(ref network.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for f := range h.followers {
		f.mu.Lock()
		f.refs[ref] = true
		f.mu.Unlock()
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// follow starts the worker with the first follower and ends it with the last.
func (h *hub) follow(ctx context.Context, work func(context.Context)) <-chan network.Ref {
	f := &follower{wake: make(chan struct{}, 1), refs: map[network.Ref]bool{}}
	out := make(chan network.Ref)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.followers == nil {
		h.followers = map[*follower]bool{}
	}
	h.followers[f] = true
	if h.stop == nil {
		before := h.stopped
		workCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
		h.stop, h.stopped = stop, make(chan struct{})
		ended := h.stopped
		go func() {
			defer close(ended)
			if before != nil {
				<-before // two workers would answer twice
			}
			work(workCtx)
		}()
	}
	go func() {
		defer close(out)
		f.pump(ctx, out)
		h.leave(f)
	}()
	return out
}

// leave waits for the worker's end, so that nothing is left running when the channel is closed.
func (h *hub) leave(f *follower) {
	h.mu.Lock()
	delete(h.followers, f)
	if len(h.followers) > 0 {
		h.mu.Unlock()
		return
	}
	h.stop()
	h.stop = nil
	stopped := h.stopped
	h.mu.Unlock()
	<-stopped
}

func (f *follower) pump(ctx context.Context, out chan<- network.Ref) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		f.mu.Lock()
		refs := f.refs
		f.refs = map[network.Ref]bool{}
		f.mu.Unlock()
		for ref := range refs {
			select {
			case <-ctx.Done():
				return
			case out <- ref:
			}
		}
	}
}
