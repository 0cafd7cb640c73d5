// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func TestSlowReaderOfAWatchSeesTheLastStateOfEachMachine(t *testing.T) {
	const keys, updates = 100, 100_000
	ctx := context.Background()
	s := open(t, t.TempDir())
	for i := range keys {
		create(t, s, fmt.Sprintf("m%02d", i))
	}
	w := s.Watch(ctx, WatchOptions{})
	defer w.Close()
	seen := map[string]int{}
	deliveries := 0
	next := func() {
		id, m, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if m.Record.Restarts < seen[id] {
			t.Fatalf("%s went back from %d to %d", id, seen[id], m.Record.Restarts)
		}
		seen[id] = m.Record.Restarts
		deliveries++
	}
	// Publishing past the disk: this is about the watch, and the disk would take minutes.
	for i := range updates {
		id := fmt.Sprintf("m%02d", i%keys)
		m := s.index.get(id).Clone()
		m.Record.Restarts++
		s.index.publish([]change{{id, m}})
		if i%977 == 0 {
			next()
		}
	}
	for len(w.queue) > 0 {
		next()
	}
	for i := range keys {
		if id := fmt.Sprintf("m%02d", i); seen[id] != updates/keys {
			t.Errorf("%s: last seen state %d, want %d", id, seen[id], updates/keys)
		}
	}
	if limit := updates/977 + 1 + keys; deliveries > limit {
		t.Errorf("%d deliveries, want them coalesced to %d at most", deliveries, limit)
	}
}

func TestWatchBeginsWithAllMachinesWhenAsked(t *testing.T) {
	ctx := context.Background()
	s := open(t, t.TempDir())
	create(t, s, "a")
	create(t, s, "b")
	w := s.Watch(ctx, WatchOptions{Initial: true})
	defer w.Close()
	create(t, s, "c")
	if err := s.Remove(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for range 3 {
		id, m, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(id, " exists: ", m != nil))
	}
	if d := cmp.Diff([]string{"a exists: true", "b exists: false", "c exists: true"}, got); d != "" {
		t.Error(d)
	}
	waiting, cancel := context.WithCancel(ctx)
	cancel()
	_, _, err := w.Next(waiting)
	wantKind(t, err, machine.Unavailable)
}

func TestWatchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s := open(t, t.TempDir())
	w := s.Watch(ctx, WatchOptions{})
	ended := make(chan error, 1)
	go func() {
		_, _, err := w.Next(context.Background())
		ended <- err
	}()
	cancel()
	wantKind(t, <-ended, machine.Unavailable)
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	if len(s.index.watches) != 0 {
		t.Error("the store still holds the watch")
	}
}

func TestAChangeIsVisibleBeforeItIsAcknowledged(t *testing.T) {
	ctx := context.Background()
	s := open(t, t.TempDir())
	w := s.Watch(ctx, WatchOptions{})
	defer w.Close()
	for i := range 20 {
		m := create(t, s, fmt.Sprint("m", i))
		if got, err := s.Get(m.ID); err != nil || got != m {
			t.Fatalf("get after create: %v, %v", got, err)
		}
		if id, got, err := w.Next(ctx); err != nil || id != m.ID || got != m {
			t.Fatalf("watch after create: %v, %v, %v", id, got, err)
		}
	}
}
