// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func TestTheFirstByteIsRecorded(t *testing.T) {
	log := filepath.Join(t.TempDir(), "console.log")
	h := newHub(t, Options{})
	g := newGuest(t).start()
	g.open(h, log)
	g.say("first")
	logHas(t, log, "first")
	if got := content(log); got != "first" {
		t.Errorf("log is %q", got)
	}
	if got := h.Tail(guestID, 3); string(got) != "rst" {
		t.Errorf("tail is %q", got)
	}
}

func TestASocketThatComesLaterIsFound(t *testing.T) {
	log := filepath.Join(t.TempDir(), "console.log")
	h := newHub(t, Options{})
	g := newGuest(t)
	g.open(h, log)
	g.start()
	g.open(h, log) // looks at once
	g.say("hello")
	logHas(t, log, "hello")
}

func TestAGuestRebootIsFollowed(t *testing.T) {
	log := filepath.Join(t.TempDir(), "console.log")
	h := newHub(t, Options{})
	g := newGuest(t).start()
	g.open(h, log)
	v := attach(t, h, AttachOptions{}).watch()
	for i := range 5 {
		g.say(fmt.Sprintf("boot %d\n", i))
		logHas(t, log, fmt.Sprintf("boot %d\n", i))
		v.types(fmt.Sprintf("key %d\n", i))
		eventually(t, "the guest hears", func() bool { return strings.Contains(g.input(), fmt.Sprintf("key %d\n", i)) })
		g.stop()
		g.start()
	}
	if got := content(log); got != "boot 0\nboot 1\nboot 2\nboot 3\nboot 4\n" {
		t.Errorf("log is %q", got)
	}
	v.sees("boot 4\n")
}

func TestAnotherEndpointReplacesTheFirst(t *testing.T) {
	log := filepath.Join(t.TempDir(), "console.log")
	h := newHub(t, Options{})
	first, second := newGuest(t).start(), newGuest(t).start()
	first.open(h, log)
	first.say("one ")
	v := attach(t, h, AttachOptions{}).watch()
	second.open(h, log)
	second.say("two")
	logHas(t, log, "one two")
	v.sees("one two")
	v.types("key")
	eventually(t, "the second guest hears", func() bool { return second.input() == "key" })
	if s := h.Stats(); s.Machines != 1 || s.Clients != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestTheLogGoesOnAfterAnotherDaemon(t *testing.T) {
	log := filepath.Join(t.TempDir(), "console.log")
	for i := range 3 {
		h := newHub(t, Options{})
		g := newGuest(t).start()
		g.open(h, log)
		want := strings.Repeat("again", i)
		v := attach(t, h, AttachOptions{}).watch()
		v.sees(want)
		g.say("again")
		v.sees(want + "again")
		logHas(t, log, want+"again")
		if got := string(h.Tail(guestID, 100)); got != want+"again" {
			t.Errorf("tail is %q", got)
		}
		h.Close()
	}
}

func TestLastWordsAreRecorded(t *testing.T) {
	log := filepath.Join(t.TempDir(), "console.log")
	h := newHub(t, Options{})
	g := newGuest(t).start()
	g.open(h, log)
	v := attach(t, h, AttachOptions{}).watch()
	text := strings.Repeat("x", 50<<10) + "panic: the end\n"
	g.say(text)
	g.stop()
	h.CloseMachine(guestID)
	if got := content(log); got != text {
		t.Errorf("log has %d bytes of %d", len(got), len(text))
	}
	select {
	case err := <-v.ended:
		v.ended <- err
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("the client was not ended")
	}
	v.sees("the end\n" + marker("the console is closed"))
	h.CloseMachine(guestID)
	wantKind(t, h.Attach(t.Context(), guestID, AttachOptions{}, nil), machine.NotFound)
	if h.Tail(guestID, 1) != nil {
		t.Error("a closed machine has a tail")
	}
}

func TestAFullDiskLosesLinesAndNothingElse(t *testing.T) {
	log := filepath.Join(t.TempDir(), "console.log")
	var told bytes.Buffer
	d := &disk{}
	h := newHub(t, Options{
		RingBytes: MinRingBytes, openLog: d.open, retryMin: time.Millisecond, retryMax: 2 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(&told, nil)),
	})
	g := newGuest(t).start()
	g.open(h, log)
	g.say("before\n")
	logHas(t, log, "before")
	d.set(true)
	v := attach(t, h, AttachOptions{}).watch()
	g.say("during\n")
	eventually(t, "errors are counted", func() bool { return h.Stats().LogErrors > 3 })
	for i := range 100 {
		g.say(fmt.Sprintf("line %04d %s\n", i, strings.Repeat("x", 1000)))
	}
	v.sees("line 0099")
	d.set(false)
	logHas(t, log, "line 0099")
	g.say("after\n")
	logHas(t, log, "after\n")
	if got := content(log); !strings.Contains(got, "bytes lost here") || !strings.HasPrefix(got, "before\nd") {
		t.Errorf("log is %.200q", got)
	}
	if h.Stats().LogLost == 0 {
		t.Error("nothing lost?")
	}
	h.Close()
	if got := strings.Count(told.String(), "level=WARN"); got != 1 {
		t.Errorf("%d warnings:\n%s", got, told.String())
	}
	if !strings.Contains(told.String(), "written again") {
		t.Errorf("recovery is not told:\n%s", told.String())
	}
}

func TestAShortTroubleLosesNothing(t *testing.T) {
	log := filepath.Join(t.TempDir(), "console.log")
	d := &disk{full: true}
	h := newHub(t, Options{openLog: d.open, retryMin: time.Millisecond, retryMax: time.Millisecond})
	g := newGuest(t).start()
	g.open(h, log)
	var want strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	g.say(want.String())
	eventually(t, "errors are counted", func() bool { return h.Stats().LogErrors > 3 })
	d.set(false)
	logHas(t, log, "line 999\n")
	if got := content(log); got != want.String() {
		t.Errorf("log differs: %.300q", got)
	}
}

func TestAStuckDiskStallsNeitherGuestNorClose(t *testing.T) {
	d := &disk{stuck: make(chan struct{})}
	h := newHub(t, Options{RingBytes: MinRingBytes, openLog: d.open})
	g := newGuest(t).start()
	g.open(h, filepath.Join(t.TempDir(), "console.log"))
	v := attach(t, h, AttachOptions{}).watch()
	start := time.Now()
	for range 1000 {
		g.say(strings.Repeat("x", 999) + "\n")
	}
	g.say("the end")
	v.sees("the end")
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("1 MB took %v", took)
	}
	h.CloseMachine(guestID)
	close(d.stuck)
	eventually(t, "the loss is counted", func() bool { return h.Stats().LogLost > 900_000 })
}

func TestADirectoryThatIsGoneIsNoTrouble(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "machine")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	h := newHub(t, Options{Logger: slog.New(slog.NewTextHandler(&told, nil)), retryMin: time.Millisecond, retryMax: time.Millisecond})
	g := newGuest(t).start()
	g.open(h, filepath.Join(dir, "console.log"))
	g.say("before")
	logHas(t, filepath.Join(dir, "console.log"), "before")
	h.CloseMachine(guestID)
	g.stop()
	g.start()
	g.open(h, filepath.Join(dir, "console.log"))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	g.say("after")
	eventually(t, "errors are counted", func() bool { return h.Stats().LogErrors > 0 })
	h.Close()
	if told.Len() > 0 {
		t.Errorf("said %s", told.String())
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory is back")
	}
}

func TestOpenRefusesWhatItCannotServe(t *testing.T) {
	h := newHub(t, Options{})
	for _, tc := range [][3]string{{"", "s", "l"}, {"a b", "s", "l"}, {"a", "", "l"}, {"a", "s", ""}} {
		wantKind(t, h.Open(tc[0], Endpoint{Socket: tc[1]}, tc[2]), machine.Invalid)
	}
	h.Close()
	wantKind(t, h.Open("a", Endpoint{Socket: "s"}, "l"), machine.Unavailable)
}

func TestTheSocketIsLookedForLessAndLessOften(t *testing.T) {
	dials := make(chan time.Time, 100)
	h := newHub(t, Options{Dial: func(context.Context, string) (net.Conn, error) {
		dials <- time.Now()
		return nil, os.ErrNotExist
	}})
	if err := h.Open(guestID, Endpoint{Socket: "nowhere"}, filepath.Join(t.TempDir(), "console.log")); err != nil {
		t.Fatal(err)
	}
	first := <-dials
	var last time.Time
	for range 7 {
		last = <-dials
	}
	if took := last.Sub(first); took < 5*127*time.Millisecond {
		t.Errorf("8 tries in %v", took)
	}
	h.Open(guestID, Endpoint{Socket: "nowhere"}, "l") // at once
	<-dials
}
