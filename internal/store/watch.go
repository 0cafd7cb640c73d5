// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"sync"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// WatchOptions configure a watch.
type WatchOptions struct {
	Initial bool // begin with every machine that exists, in the order of List
}

// Watch tells which machines changed. It holds at most one entry a machine, so it needs no limit and drops nothing:
// whoever reads slowly sees fewer intermediate states, but always the last one.
type Watch struct {
	index *index
	stop  func() bool

	mu      sync.Mutex
	queue   []string // keys in order of their first unseen change
	pending map[string]struct{}
	ended   bool
	wake    chan struct{} // holds a token while there may be something to see
}

// Watch starts a watch that sees every change acknowledged from now on. It ends with ctx, with Watch.Close or with
// the store, and holds no goroutine.
func (s *Store) Watch(ctx context.Context, o WatchOptions) *Watch {
	w := &Watch{index: s.index, pending: map[string]struct{}{}, wake: make(chan struct{}, 1)}
	s.index.mu.Lock()
	if o.Initial {
		for _, m := range s.index.list {
			w.add([]change{{id: m.ID}})
		}
	}
	if s.index.watches == nil {
		w.ended = true
	} else {
		s.index.watches[w] = struct{}{}
	}
	s.index.mu.Unlock()
	w.stop = context.AfterFunc(ctx, w.leave)
	return w
}

// Next waits for a change and returns the machine as it is now; nil means that it is gone (a machine that came and
// went unseen is told as gone, too). It fails with machine.Unavailable when ctx or the watch has ended. One
// goroutine at a time may call it.
func (w *Watch) Next(ctx context.Context) (id string, m *machine.Machine, err error) {
	for {
		id, ended := w.pop()
		switch {
		case ended:
			return "", nil, machine.Errorf(machine.Unavailable, "watch has ended")
		case id != "":
			return id, w.index.get(id), nil
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return "", nil, machine.Wrap(machine.Unavailable, context.Cause(ctx), "wait for a change")
		}
	}
}

// Close ends the watch. Closing twice is fine.
func (w *Watch) Close() {
	w.stop()
	w.leave()
}

// leave takes the watch from the store and ends it.
func (w *Watch) leave() {
	w.index.mu.Lock()
	delete(w.index.watches, w)
	w.index.mu.Unlock()
	w.end()
}

func (w *Watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.queue, w.pending = nil, nil
	w.signal()
}

func (w *Watch) add(changes []change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	for _, c := range changes {
		if _, ok := w.pending[c.id]; !ok {
			w.pending[c.id] = struct{}{}
			w.queue = append(w.queue, c.id)
		}
	}
	w.signal()
}

func (w *Watch) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// pop takes the first key; "" means that there is none. The key is taken before the state is read, so a change in
// between is told again.
func (w *Watch) pop() (id string, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return "", true
	}
	if len(w.queue) == 0 {
		return "", false
	}
	id = w.queue[0]
	w.queue = w.queue[1:]
	if len(w.queue) == 0 {
		w.queue = nil
	}
	delete(w.pending, id)
	return id, false
}
