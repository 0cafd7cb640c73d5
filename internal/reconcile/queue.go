// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// Queue holds the machines that want a look. A key is never handed to two workers at once; adding it while it is
// being worked on hands it out once more afterwards. Keys come out in the order in which they fell due.
type Queue struct {
	mu         sync.Mutex
	due        dueHeap
	items      map[string]*item // waiting keys
	processing map[string]bool
	again      map[string]time.Time // keys added while processing, with their due time
	closed     bool
	wake       chan struct{}
	now        func() time.Time
	seq        uint64
}

type item struct {
	key   string
	at    time.Time
	seq   uint64 // order among equal times
	index int
}

// NewQueue makes an empty queue. The clock may be nil.
func NewQueue(now func() time.Time) *Queue {
	if now == nil {
		now = time.Now
	}
	return &Queue{
		items: map[string]*item{}, processing: map[string]bool{}, again: map[string]time.Time{},
		wake: make(chan struct{}, 1), now: now,
	}
}

// Add makes key due now.
func (q *Queue) Add(key string) { q.AddAfter(key, 0) }

// AddAfter makes key due after d; a key that waits already comes at the earlier of the two times.
func (q *Queue) AddAfter(key string, d time.Duration) {
	at := q.now().Add(d)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if q.processing[key] {
		if old, ok := q.again[key]; !ok || at.Before(old) {
			q.again[key] = at
		}
		return
	}
	q.push(key, at)
}

func (q *Queue) push(key string, at time.Time) {
	if it, ok := q.items[key]; ok {
		if at.Before(it.at) {
			it.at = at
			heap.Fix(&q.due, it.index)
		}
	} else {
		q.seq++
		it := &item{key: key, at: at, seq: q.seq}
		q.items[key] = it
		heap.Push(&q.due, it)
	}
	q.signal()
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Get waits for the next due key. ok is false when ctx ended or the queue is closed. late is how long the key has
// been due.
func (q *Queue) Get(ctx context.Context) (key string, late time.Duration, ok bool) {
	for {
		key, late, wait, closed := q.pop()
		switch {
		case closed || ctx.Err() != nil:
			q.signal() // the other waiters must see it too
			return "", 0, false
		case key != "":
			return key, late, true
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-q.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (q *Queue) pop() (key string, late, wait time.Duration, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return "", 0, 0, true
	}
	if len(q.due) == 0 {
		return "", 0, time.Hour, false
	}
	now := q.now()
	first := q.due[0]
	if d := first.at.Sub(now); d > 0 {
		return "", 0, d, false
	}
	heap.Pop(&q.due)
	delete(q.items, first.key)
	q.processing[first.key] = true
	if len(q.due) > 0 {
		q.signal() // one signal wakes one worker; pass it on
	}
	return first.key, now.Sub(first.at), 0, false
}

// Done says that the worker which got key has finished with it.
func (q *Queue) Done(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.processing, key)
	if at, ok := q.again[key]; ok {
		delete(q.again, key)
		if !q.closed {
			q.push(key, at)
		}
	}
}

// Len returns how many keys wait, due or not.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) + len(q.again)
}

// Close ends all waiting Gets.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}

type dueHeap []*item

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].seq < h[j].seq
	}
	return h[i].at.Before(h[j].at)
}

func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *dueHeap) Push(x any) {
	it, _ := x.(*item)
	it.index = len(*h)
	*h = append(*h, it)
}

func (h *dueHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	*h = old[:len(old)-1]
	return it
}
