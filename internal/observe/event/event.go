// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package event keeps what a user would like to be told about a machine, for the poollet to fetch once a minute. It
// exists because an error code reaches nobody: the poollet retries in silence, and only an event shows on the machine.
// It must never hold a secret, grow without bound, or hand out a message with a format verb in it, since the poollet
// uses messages as format strings.
package event

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Type is the type of an event, as Kubernetes has them.
type Type string

// The types.
const (
	Normal  Type = "Normal"
	Warning Type = "Warning"
)

// Defaults of Options.
const (
	DefaultMax = 1000
	// DefaultTTL must exceed the minute between two calls of the poollet.
	DefaultTTL = 5 * time.Minute
	minTTL     = 2 * time.Minute
)

// maxMessage bounds a message in bytes; what is longer is cut.
const maxMessage = 1024

// Involved is the machine an event is about, with the labels by which the poollet finds its own object.
type Involved struct {
	ID          string
	Labels      map[string]string
	Annotations map[string]string
}

// Event is one thing that happened, Count times since First.
type Event struct {
	Involved Involved
	Type     Type
	Reason   string // CamelCase, for machines
	Action   string // CamelCase; what was being done
	Message  string // for people; ends in " (n times)" when it was repeated
	Time     time.Time
	First    time.Time
	Count    int
}

// Options is what a Recorder is made of.
type Options struct {
	Max int           // events kept; the oldest go first; default 1000
	TTL time.Duration // default 5m, at least 2m
	Now func() time.Time
	// Observe is told of each event recorded, for metrics. May be nil.
	Observe func(kind Type, reason, action string)
}

// Recorder keeps events in memory. It needs no goroutine: what is too old is left out and dropped when asked.
type Recorder struct {
	max     int
	ttl     time.Duration
	now     func() time.Time
	observe func(kind Type, reason, action string)

	mu       sync.Mutex
	events   []*entry // by time of the last repetition
	recorded int64
	lost     int64
}

// Stats counts what a recorder has and had. The counters never go back.
type Stats struct {
	Held     int   // events that can be fetched now
	Recorded int64 // repetitions count, too
	Lost     int64 // driven out by newer ones within two minutes, so that the poollet may have missed them
}

// Stats returns the counters.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(r.now())
	return Stats{Held: len(r.events), Recorded: r.recorded, Lost: r.lost}
}

type entry struct {
	Event
	text  string // the message without its count
	spans []span // when it happened, the oldest first
}

// New makes a Recorder.
func New(o Options) (*Recorder, error) {
	if o.Max == 0 {
		o.Max = DefaultMax
	}
	if o.TTL == 0 {
		o.TTL = DefaultTTL
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Observe == nil {
		o.Observe = func(Type, string, string) {}
	}
	switch {
	case o.Max < 1:
		return nil, fmt.Errorf("event recorder: max is %d, want at least 1", o.Max)
	case o.TTL < minTTL:
		return nil, errors.New("event recorder: the ttl must be at least " + minTTL.String() + ", or the poollet misses events")
	}
	return &Recorder{max: o.Max, ttl: o.TTL, now: o.Now, observe: o.Observe}, nil
}

// Record adds an event. The same one again within the TTL only raises its count and time. An event without a reason
// or action is a mistake of the caller and shows as "Unknown", as the poollet would have it.
func (r *Recorder) Record(about Involved, kind Type, reason, action, message string) {
	text, now := clean(message), r.now()
	if reason == "" {
		reason = "Unknown"
	}
	if action == "" {
		action = "Unknown"
	}
	r.observe(kind, reason, action)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(now)
	r.recorded++
	for i, e := range r.events {
		if e.Involved.ID == about.ID && e.Type == kind && e.Reason == reason && e.Action == action && e.text == text {
			e.Count++
			e.Time = now
			e.spans = happened(e.spans, now.Unix())
			e.Message = fmt.Sprintf("%s (%d times)", text, e.Count)
			r.events = append(append(r.events[:i], r.events[i+1:]...), e)
			return
		}
	}
	if len(r.events) >= r.max {
		for _, e := range r.events[:len(r.events)-r.max+1] {
			if now.Sub(e.Time) < minTTL {
				r.lost++
			}
		}
		r.events = append(r.events[:0], r.events[len(r.events)-r.max+1:]...)
	}
	about.Labels, about.Annotations = maps.Clone(about.Labels), maps.Clone(about.Annotations)
	r.events = append(r.events, &entry{text: text, spans: happened(nil, now.Unix()), Event: Event{
		Involved: about, Type: kind, Reason: reason, Action: action, Message: text, Time: now, First: now, Count: 1,
	}})
}

// clean makes a message safe to be used as a format string and to be shown on one line.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "?")
	s = strings.NewReplacer("%", " percent", "\n", " ", "\r", "").Replace(s)
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return s
}

// expire drops what is older than the TTL.
func (r *Recorder) expire(now time.Time) {
	n := 0
	for n < len(r.events) && now.Sub(r.events[n].Time) > r.ttl {
		n++
	}
	if n > 0 {
		r.events = append(r.events[:0], r.events[n:]...)
	}
}

// Filter narrows a list. The zero value lets everything through.
type Filter struct {
	ID       string
	Labels   map[string]string // each must be there with this value
	From, To int64             // Unix seconds, [From, To); used only when both are positive
}

// pick returns the event as the filter shows it. In a window its time is the last one in there, however often it was
// repeated since: one that is repeated all the time would else always be newer than the window.
func (f Filter) pick(e *entry) (Event, bool) {
	if f.ID != "" && e.Involved.ID != f.ID {
		return Event{}, false
	}
	for k, want := range f.Labels {
		if got, ok := e.Involved.Labels[k]; !ok || got != want {
			return Event{}, false
		}
	}
	if f.From <= 0 || f.To <= 0 {
		return e.Event, true
	}
	at, ok := lastIn(e.spans, f.From, f.To)
	if !ok {
		return Event{}, false
	}
	shown := e.Event
	if at != e.Time.Unix() {
		shown.Time = time.Unix(at, 0)
	}
	return shown, true
}

// List returns the events that match, the oldest first. Of windows that follow each other, each shows what happened in
// it, once however often it did: the upper bound is not included.
func (r *Recorder) List(f Filter) []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(r.now())
	var out []Event
	for _, e := range r.events {
		if shown, ok := f.pick(e); ok {
			out = append(out, shown)
		}
	}
	slices.SortStableFunc(out, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return out
}
