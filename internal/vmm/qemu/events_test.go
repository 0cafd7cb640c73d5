// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/qemu/qmp"
)

func event(name, data string) qmp.Event {
	return qmp.Event{Name: name, Data: json.RawMessage(data), At: time.Unix(1, 0)}
}

func drain(q *eventQueue) []vmm.Event {
	q.finish()
	var got []vmm.Event
	for e := range q.out {
		got = append(got, e)
	}
	return got
}

func TestEventsAreTranslated(t *testing.T) {
	defer goleak.VerifyNone(t)
	guestOff := event("SHUTDOWN", `{"guest": true, "reason": "guest-shutdown"}`)
	for name, c := range map[string]struct {
		events []qmp.Event
		quiet  bool
		want   []vmm.Event
	}{
		"boot": {events: []qmp.Event{event("RESUME", "")}, want: []vmm.Event{{Kind: vmm.EventBooted}}},
		"guest powers off, QEMU stops": {
			events: []qmp.Event{guestOff, event("STOP", "")},
			want:   []vmm.Event{{Kind: vmm.EventGuestStopped, Reason: "guest-shutdown"}},
		},
		"guest restarts": {
			events: []qmp.Event{event("RESET", `{"guest": true, "reason": "guest-reset"}`)},
			want:   []vmm.Event{{Kind: vmm.EventGuestReset, Reason: "guest-reset"}},
		},
		"power is cut by us":            {events: []qmp.Event{event("STOP", ""), event("RESET", "{}")}, quiet: true},
		"processors stop for no reason": {events: []qmp.Event{event("STOP", "")}, want: []vmm.Event{{Kind: vmm.EventResync, Reason: "the processors stopped"}}},
		"guest panics": {
			events: []qmp.Event{event("GUEST_PANICKED", `{"action": "run"}`)},
			want:   []vmm.Event{{Kind: vmm.EventGuestPanicked}},
		},
		"device goes in two parts": {
			events: []qmp.Event{
				event("DEVICE_DELETED", `{"path": "/machine/peripheral/disk-a/virtio-backend"}`),
				event("DEVICE_DELETED", `{"device": "disk-a", "path": "/machine/peripheral/disk-a"}`),
			},
			want: []vmm.Event{{Kind: vmm.EventDeviceRemoved, Device: "disk-a"}},
		},
		"unknown and malformed": {events: []qmp.Event{event("RTC_CHANGE", `{"offset": 1}`), event("DEVICE_DELETED", `[1]`)}},
	} {
		t.Run(name, func(t *testing.T) {
			q := newEventQueue()
			if c.quiet {
				defer q.quiet()()
			}
			for _, e := range c.events {
				q.observe(e)
			}
			if diff := cmp.Diff(c.want, drain(q), cmpopts.IgnoreFields(vmm.Event{}, "At")); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTooManyEventsBecomeAResync(t *testing.T) {
	defer goleak.VerifyNone(t)
	q := newEventQueue()
	for range 10 * maxQueued {
		q.observe(event("RESET", "{}"))
	}
	q.observe(event("RESUME", ""))
	got := drain(q)
	resyncs := 0
	for _, e := range got {
		if e.Kind == vmm.EventResync {
			resyncs++
		}
	}
	// One may already be in the hand that gives them out when more are lost.
	if len(got) > maxQueued+1 || resyncs < 1 || resyncs > 2 {
		t.Errorf("%d events with %d resyncs, want at most %d with one or two", len(got), resyncs, maxQueued+1)
	}
	if last := got[len(got)-1].Kind; last != vmm.EventBooted {
		t.Errorf("last event %s, want what came after the loss", last)
	}
}

func TestClosedQueueLeavesNoGoroutine(t *testing.T) {
	defer goleak.VerifyNone(t)
	q := newEventQueue()
	q.observe(event("RESUME", ""))
	q.close()
	q.close()
	for range q.out {
	}
}
