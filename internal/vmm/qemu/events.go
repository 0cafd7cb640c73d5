// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/qemu/qmp"
)

// maxQueued bounds the events that wait for a slow reader.
const maxQueued = 64

// eventQueue stands between QEMU's events and whoever reads them: observe and
// push never block, and when too much has piled up one EventResync takes the
// place of all that waited.
type eventQueue struct {
	out  chan vmm.Event
	wake chan struct{}
	stop chan struct{} // nobody reads any more
	once sync.Once

	mu       sync.Mutex
	waiting  []vmm.Event
	muted    int    // calls that cause events of their own
	down     bool   // the guest said it is down; the STOP that follows is no news
	problem  string // the device that stopped the guest last; the requests that fail with it are no news
	finished bool   // nothing more will come
}

func newEventQueue() *eventQueue {
	q := &eventQueue{out: make(chan vmm.Event), wake: make(chan struct{}, 1), stop: make(chan struct{})}
	go q.run()
	return q
}

// run hands events out one by one and closes the channel at the end.
func (q *eventQueue) run() {
	defer close(q.out)
	for {
		ev, ok, finished := q.next()
		switch {
		case ok:
			select {
			case q.out <- ev:
			case <-q.stop:
				return
			}
		case finished:
			return
		default:
			select {
			case <-q.wake:
			case <-q.stop:
				return
			}
		}
	}
}

func (q *eventQueue) next() (ev vmm.Event, ok, finished bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return vmm.Event{}, false, q.finished
	}
	ev = q.waiting[0]
	q.waiting = q.waiting[1:]
	return ev, true, false
}

// push queues an event.
func (q *eventQueue) push(ev vmm.Event) {
	q.mu.Lock()
	q.enqueue(ev)
	q.mu.Unlock()
}

// enqueue is push with q.mu held.
func (q *eventQueue) enqueue(ev vmm.Event) {
	if q.finished {
		return
	}
	if len(q.waiting) >= maxQueued {
		q.waiting = []vmm.Event{{Kind: vmm.EventResync, Reason: "too many events", At: ev.At}}
	}
	q.waiting = append(q.waiting, ev)
	q.signal()
}

func (q *eventQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// finish lets what waits be read and then closes the channel.
func (q *eventQueue) finish() {
	q.mu.Lock()
	q.finished = true
	q.mu.Unlock()
	q.signal()
}

// close closes the channel although something may wait.
func (q *eventQueue) close() { q.once.Do(func() { close(q.stop) }) }

// quiet mutes the events of stopping and resetting that a call of ours causes,
// until the returned function is called.
func (q *eventQueue) quiet() (loud func()) {
	q.mu.Lock()
	q.muted++
	q.mu.Unlock()
	return func() {
		q.mu.Lock()
		q.muted--
		q.mu.Unlock()
	}
}

// observe translates one of QEMU's events (qapi/run-state.json, qapi/qdev.json).
func (q *eventQueue) observe(e qmp.Event) {
	var data struct {
		Reason  string `json:"reason"`
		Device  string `json:"device"`
		Node    string `json:"node-name"`
		Action  string `json:"action"`
		NoSpace bool   `json:"nospace"`
	}
	if len(e.Data) > 0 && json.Unmarshal(e.Data, &data) != nil {
		data.Reason = ""
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	at := e.At
	if at.IsZero() {
		at = time.Now()
	}
	switch e.Name {
	case "RESUME":
		q.down, q.problem = false, ""
		q.enqueue(vmm.Event{Kind: vmm.EventBooted, At: at})
	case "SHUTDOWN":
		q.down = true
		q.enqueue(vmm.Event{Kind: vmm.EventGuestStopped, Reason: data.Reason, At: at})
	case "RESET":
		if q.muted == 0 && !q.down {
			q.enqueue(vmm.Event{Kind: vmm.EventGuestReset, Reason: data.Reason, At: at})
		}
	case "GUEST_PANICKED", "GUEST_CRASHLOADED":
		q.enqueue(vmm.Event{Kind: vmm.EventGuestPanicked, At: at})
	case "DEVICE_DELETED":
		// A device's parts are told too, without an id; they are no news.
		if data.Device != "" {
			q.enqueue(vmm.Event{Kind: vmm.EventDeviceRemoved, Device: data.Device, At: at})
		}
	case "DEVICE_UNPLUG_GUEST_ERROR":
		if data.Device != "" {
			q.enqueue(vmm.Event{Kind: vmm.EventDeviceKept, Device: data.Device, Reason: "the guest refuses to let go of it", At: at})
		}
	case "BLOCK_IO_ERROR":
		// One a request; what stops nothing is told to the guest, whose it is.
		if id := strings.TrimPrefix(data.Node, nodePrefix); data.Action == "stop" && q.problem != id {
			q.problem = id
			if data.NoSpace {
				data.Reason = "no space left on the host"
			}
			q.enqueue(vmm.Event{Kind: vmm.EventProblem, Device: id, Reason: data.Reason, At: at})
		}
	case "STOP":
		// Neither we nor the guest: an internal error, or a person on the
		// second socket. QEMU tells no reason, so look.
		if q.muted == 0 && !q.down {
			q.enqueue(vmm.Event{Kind: vmm.EventResync, Reason: "the processors stopped", At: at})
		}
	}
}
