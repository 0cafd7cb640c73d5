// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"sync"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

// queuedEvents is how many events wait for a reader. A restart of the guest makes one.
const queuedEvents = 64

// eventQueue is between the follower of all machines, which must not be stalled, and one machine's reader.
type eventQueue struct {
	c chan vmm.Event

	mu     sync.Mutex // held by the one who writes to c
	closed bool
}

func newEventQueue() *eventQueue {
	return &eventQueue{c: make(chan vmm.Event, queuedEvents)}
}

// take translates what the VMM wrote.
func (q *eventQueue) take(b api.Batch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	now := time.Now()
	if b.Lost {
		q.push(vmm.Event{Kind: vmm.EventResync, Reason: "the VMM's event file was truncated or could not be read", At: now})
	}
	for _, e := range b.Events {
		if e.Source == "vmm" && e.Event == "shutdown" {
			q.closed = true
			close(q.c)
			return
		}
		if event, ok := translate(e); ok {
			event.At = now
			q.push(event)
		}
	}
}

// push needs mu. When the queue is full, one EventResync takes the place of all that is in it.
func (q *eventQueue) push(e vmm.Event) {
	select {
	case q.c <- e:
		return
	default:
	}
	for {
		select {
		case <-q.c:
			continue
		default:
		}
		break
	}
	q.c <- vmm.Event{Kind: vmm.EventResync, Reason: "events were not read in time", At: e.At}
}

func (q *eventQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.c)
	}
}

// translate leaves out what only announces ("booting") or concerns nobody here. That the guest is down is one event
// whoever wanted it: the VMM does not tell.
func translate(e api.Event) (vmm.Event, bool) {
	switch e.Source + " " + e.Event {
	case "vm booted":
		return vmm.Event{Kind: vmm.EventBooted}, true
	case "vm shutdown":
		return vmm.Event{Kind: vmm.EventGuestStopped}, true
	case "vm rebooted":
		return vmm.Event{Kind: vmm.EventGuestReset}, true
	case "vm device-removed":
		return vmm.Event{Kind: vmm.EventDeviceRemoved, Device: e.Properties["id"]}, true
	case "guest panic":
		return vmm.Event{Kind: vmm.EventGuestPanicked, Reason: e.Properties["event"]}, true
	}
	return vmm.Event{}, false
}
