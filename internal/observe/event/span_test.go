// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package event

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A poller asks once a minute for [last, now). An event that is repeated more than once a second was newer than every
// such window, so nobody was ever told of it.
func TestAnEventThatIsRepeatedAllTheTimeIsInEveryWindow(t *testing.T) {
	for name, every := range map[string]time.Duration{
		"ten times a second": 100 * time.Millisecond, "every second": time.Second, "every seven seconds": 7 * time.Second,
		"once a minute": time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			r, now := newRecorder(t, Options{})
			last := now.Unix()
			for poll := range 10 {
				for range time.Minute / every {
					r.Record(machine, Warning, "StepFailed", "Reconcile", "no space left on device")
					*now = now.Add(every)
				}
				r.Record(machine, Warning, "StepFailed", "Reconcile", "no space left on device") // in the second of the poll
				got := r.List(Filter{From: last, To: now.Unix()})
				if len(got) != 1 {
					t.Fatalf("poll %d: %d events, want 1", poll, len(got))
				}
				if at := got[0].Time.Unix(); at < last || at >= now.Unix() {
					t.Errorf("poll %d: its time %d is not in [%d, %d)", poll, at, last, now.Unix())
				}
				last = now.Unix()
			}
		})
	}
}

func TestAnEventIsInNoWindowInWhichItDidNotHappen(t *testing.T) {
	r, now := newRecorder(t, Options{})
	start := now.Unix()
	for _, after := range []time.Duration{0, 90 * time.Second} {
		*now = now.Add(after)
		r.Record(machine, Normal, "R", "Do", "x")
	}
	for _, c := range []struct {
		name     string
		from, to int64
		want     int
	}{
		{"the first time", 0, 1, 1},
		{"between", 1, 90, 0},
		{"the second time", 90, 91, 1},
		{"after", 91, 200, 0},
		{"both", 0, 91, 1},
		{"nothing", 0, 0, 0},
	} {
		if got := r.List(Filter{From: start + c.from, To: start + c.to}); len(got) != c.want {
			t.Errorf("%s: %d events, want %d", c.name, len(got), c.want)
		}
	}
}

func TestWindowsAreInTheOrderOfTheirTimes(t *testing.T) {
	r, now := newRecorder(t, Options{})
	start := now.Unix()
	r.Record(machine, Normal, "A", "Do", "first, and again later")
	*now = now.Add(time.Second)
	r.Record(machine, Normal, "B", "Do", "second")
	*now = now.Add(time.Minute)
	r.Record(machine, Normal, "A", "Do", "first, and again later")
	got := r.List(Filter{From: start, To: start + 30})
	if len(got) != 2 || got[0].Reason != "A" || got[1].Reason != "B" {
		t.Errorf("%+v", got)
	}
}

// Whatever happens when, spans stay bounded and no window misses what happened in it.
func TestSpansMissNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var spans []span
		var times []int64
		at := int64(1000)
		for range rapid.IntRange(1, 300).Draw(t, "events") {
			at += rapid.SampledFrom([]int64{0, 0, 1, 1, 2, 3, 10}).Draw(t, "gap")
			spans, times = happened(spans, at), append(times, at)
		}
		if len(spans) > maxSpans {
			t.Fatalf("%d spans", len(spans))
		}
		from := rapid.Int64Range(990, at+5).Draw(t, "from")
		to := rapid.Int64Range(from, at+10).Draw(t, "to")
		var want bool
		for _, s := range times {
			want = want || s >= from && s < to
		}
		got, ok := lastIn(spans, from, to)
		if want && !ok {
			t.Fatalf("[%d, %d) misses what happened in it", from, to)
		}
		if ok && (got < from || got >= to) {
			t.Fatalf("%d is not in [%d, %d)", got, from, to)
		}
	})
}
