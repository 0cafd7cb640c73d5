// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const stream = `{
  "timestamp": {
    "secs": 0,
    "nanos": 172854
  },
  "source": "vmm",
  "event": "starting",
  "properties": null
}

{
  "timestamp": {
    "secs": 1,
    "nanos": 119521646
  },
  "source": "vm",
  "event": "device-removed",
  "properties": {
    "id": "disk-a",
    "bdf": "0000:00:03.0"
  }
}

`

var streamEvents = []api.Event{
	{Timestamp: api.Timestamp{Nanos: 172854}, Source: "vmm", Event: "starting"},
	{
		Timestamp: api.Timestamp{Secs: 1, Nanos: 119521646}, Source: "vm", Event: "device-removed",
		Properties: map[string]string{"id": "disk-a", "bdf": "0000:00:03.0"},
	},
}

func TestAStreamCutAnywhereGivesTheSameEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d api.Decoder
		var got []api.Event
		for rest := []byte(stream); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "length")
			events, lost := d.Feed(bytes.Clone(rest[:n]))
			if lost {
				t.Fatal("something was skipped")
			}
			got = append(got, events...)
			rest = rest[n:]
		}
		if diff := cmp.Diff(streamEvents, got); diff != "" {
			t.Fatalf("events (-want +got):\n%s", diff)
		}
	})
}

func TestRubbishIsSkippedAndReported(t *testing.T) {
	for name, rubbish := range map[string]string{
		"the end of an event": "  \"event\": \"booted\"\n}\n\n",
		"no JSON":             "\x01\x02 what\n\n",
		"other JSON":          "{\"source\": 7}\n\n",
		"zeros of a hole":     strings.Repeat("\x00", 5000),
		"an endless event":    "{\"source\": \"" + strings.Repeat("x", 70_000) + "\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			var d api.Decoder
			got, lost := d.Feed([]byte(rubbish + stream))
			if diff := cmp.Diff(streamEvents, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if want := name != "zeros of a hole"; lost != want {
				t.Errorf("lost is %v, want %v", lost, want)
			}
		})
	}
}

func TestAnyInputIsSurvived(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d api.Decoder
		for range 4 {
			d.Feed(rapid.SliceOf(rapid.Byte()).Draw(t, "piece"))
		}
		d.Feed([]byte("\n\n"))
		d.Reset()
		if got, _ := d.Feed([]byte(stream)); len(got) != len(streamEvents) {
			t.Fatalf("%d events after rubbish", len(got))
		}
	})
}

func event(name string) string {
	return "{\n  \"source\": \"vm\",\n  \"event\": \"" + name + "\"\n}\n\n"
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, c <-chan api.Batch) api.Batch {
	t.Helper()
	select {
	case b := <-c:
		return b
	case <-time.After(30 * time.Second):
		t.Fatal("no event within 30 s")
		return api.Batch{}
	}
}

func newFollower(t *testing.T) *api.Follower {
	t.Helper()
	f, err := api.NewFollower(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func follow(t *testing.T, f *api.Follower, path string) (<-chan api.Batch, func()) {
	t.Helper()
	c := make(chan api.Batch, 64)
	stop, err := f.Follow(path, func(b api.Batch) { c <- b })
	if err != nil {
		t.Fatal(err)
	}
	return c, stop
}

func TestOneFollowerServesManyFilesFromTheirEnds(t *testing.T) {
	f := newFollower(t)
	dir := t.TempDir()
	var channels []<-chan api.Batch
	for i := range 20 {
		path := filepath.Join(dir, strconv.Itoa(i))
		if err := os.WriteFile(path, []byte(event("old")), 0o600); err != nil {
			t.Fatal(err)
		}
		c, stop := follow(t, f, path)
		defer stop()
		channels = append(channels, c)
	}
	for i, c := range channels {
		name := "new-" + strconv.Itoa(i)
		appendTo(t, filepath.Join(dir, strconv.Itoa(i)), event(name))
		got := receive(t, c)
		if len(got.Events) != 1 || got.Events[0].Event != name || got.Lost {
			t.Errorf("file %d gave %+v", i, got)
		}
	}
}

func TestATruncatedFileIsReadFromItsStart(t *testing.T) {
	f := newFollower(t)
	path := filepath.Join(t.TempDir(), "events")
	if err := os.WriteFile(path, []byte(strings.Repeat(event("old"), 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	c, stop := follow(t, f, path)
	defer stop()
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	appendTo(t, path, event("starting"))
	lost, seen := false, 0
	for seen == 0 {
		b := receive(t, c)
		lost = lost || b.Lost
		seen += len(b.Events)
	}
	if !lost || seen != 1 {
		t.Errorf("lost is %v, %d events, want true and one", lost, seen)
	}
}

func TestNothingComesAfterStop(t *testing.T) {
	f := newFollower(t)
	path := filepath.Join(t.TempDir(), "events")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, stop := follow(t, f, path)
	// A second follower of the same file proves that the change was noticed.
	other, stopOther := follow(t, f, path)
	defer stopOther()
	stop()
	stop()
	appendTo(t, path, event("late"))
	receive(t, other)
	if len(c) != 0 {
		t.Error("the stopped follower was called")
	}
}

func TestAReplacedFileIsFollowedAnew(t *testing.T) {
	f := newFollower(t)
	path := filepath.Join(t.TempDir(), "events")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, stopOld := follow(t, f, path)
	defer stopOld()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, stop := follow(t, f, path)
	defer stop()
	appendTo(t, path, event("new"))
	if got := receive(t, c); len(got.Events) != 1 || got.Events[0].Event != "new" {
		t.Errorf("the new file gave %+v", got)
	}
}

func TestAFollowerCanBeClosedTwiceAndRefusesThen(t *testing.T) {
	f := newFollower(t)
	path := filepath.Join(t.TempDir(), "events")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, stop := follow(t, f, path)
	for range 2 {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if _, err := f.Follow(path, func(api.Batch) {}); err == nil {
		t.Error("a closed follower follows")
	}
	if _, err := f.Follow(path+"-none", func(api.Batch) {}); err == nil {
		t.Error("a missing file is followed")
	}
}
