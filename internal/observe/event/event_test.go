// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func newRecorder(t *testing.T, o Options) (*Recorder, *time.Time) {
	t.Helper()
	now := time.Unix(1_800_000_000, 0)
	o.Now = func() time.Time { return now }
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return r, &now
}

var machine = Involved{ID: "m", Labels: map[string]string{"uid": "u", "empty": ""}}

func TestARepeatedEventIsCountedAndMovesToTheEnd(t *testing.T) {
	r, now := newRecorder(t, Options{})
	r.Record(machine, Warning, "A", "Do", "broken")
	r.Record(machine, Normal, "B", "Do", "fine")
	*now = now.Add(time.Minute)
	r.Record(machine, Warning, "A", "Do", "broken")
	got := r.List(Filter{})
	if len(got) != 2 || got[1].Message != "broken (2 times)" || got[1].Count != 2 || !got[1].Time.Equal(*now) {
		t.Errorf("%+v", got)
	}
}

func TestMessagesAreSafeAsFormats(t *testing.T) {
	r, _ := newRecorder(t, Options{})
	r.Record(machine, Normal, "", "", "95% of\n%d "+strings.Repeat("ä", 2000)+"\xff")
	got := r.List(Filter{})[0]
	if strings.ContainsAny(got.Message, "%\n") || !utf8.ValidString(got.Message) || strings.Contains(got.Message, "!(") || len(got.Message) > maxMessage+8 {
		t.Errorf("%q", got.Message)
	}
	if got.Action != "Unknown" || got.Reason != "Unknown" {
		t.Errorf("%+v", got)
	}
}

func TestTheOldestGoFirst(t *testing.T) {
	r, _ := newRecorder(t, Options{Max: 3})
	for i := range 5 {
		r.Record(machine, Normal, "R", "Do", fmt.Sprint(i))
	}
	got := r.List(Filter{})
	if len(got) != 3 || got[0].Message != "2" || got[2].Message != "4" {
		t.Errorf("%+v", got)
	}
}

func TestEventsOutliveTheirTTLNot(t *testing.T) {
	r, now := newRecorder(t, Options{})
	r.Record(machine, Normal, "R", "Do", "old")
	*now = now.Add(DefaultTTL)
	if n := len(r.List(Filter{})); n != 1 {
		t.Errorf("%d events at the TTL", n)
	}
	*now = now.Add(time.Second)
	if n := len(r.List(Filter{})); n != 0 {
		t.Errorf("%d events after it", n)
	}
}

func TestFiltersNarrowTheList(t *testing.T) {
	r, now := newRecorder(t, Options{})
	at := now.Unix()
	r.Record(machine, Normal, "R", "Do", "x")
	for _, c := range []struct {
		name string
		f    Filter
		want int
	}{
		{"everything", Filter{}, 1},
		{"its id", Filter{ID: "m"}, 1},
		{"another id", Filter{ID: "n"}, 0},
		{"its label", Filter{Labels: map[string]string{"uid": "u"}}, 1},
		{"another value", Filter{Labels: map[string]string{"uid": "v"}}, 0},
		{"a label that is there and empty", Filter{Labels: map[string]string{"empty": ""}}, 1},
		{"a label that is not there", Filter{Labels: map[string]string{"none": ""}}, 0},
		{"a window that begins with it", Filter{From: at, To: at + 60}, 1},
		{"the window before, which ends with it", Filter{From: at - 60, To: at}, 0},
		{"half a window", Filter{From: at + 60}, 1},
	} {
		if got := len(r.List(c.f)); got != c.want {
			t.Errorf("%s: %d events, want %d", c.name, got, c.want)
		}
	}
}

func TestATTLBelowTheMinuteOfThePoolletIsRefused(t *testing.T) {
	if _, err := New(Options{TTL: time.Minute}); err == nil {
		t.Error("accepted")
	}
}

func TestEventsDrivenOutBeforeTheyCanBeFetchedAreCounted(t *testing.T) {
	r, now := newRecorder(t, Options{Max: 2})
	for _, step := range []struct {
		after time.Duration
		want  Stats
	}{
		{0, Stats{Held: 1, Recorded: 1}},
		{0, Stats{Held: 2, Recorded: 2}},
		{time.Second, Stats{Held: 2, Recorded: 3, Lost: 1}},
		{3 * time.Minute, Stats{Held: 2, Recorded: 4, Lost: 1}}, // that one was fetched long ago
		{6 * time.Minute, Stats{Held: 1, Recorded: 5, Lost: 1}},
	} {
		*now = now.Add(step.after)
		r.Record(machine, Normal, "R", "Do", now.String()+fmt.Sprint(step.want.Recorded))
		if got := r.Stats(); got != step.want {
			t.Errorf("%+v, want %+v", got, step.want)
		}
	}
}
