// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

const (
	three = "33333333-3333-4333-8333-333333333333"
	four  = "44444444-4444-4444-8444-444444444444"
)

// logged gathers what is logged.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) has(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return true
		}
	}
	return false
}

func (l *logged) until(t *testing.T, words ...string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !l.has(words...); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never logged: %q", words)
		}
	}
}

func sweeping(t *testing.T) (*host, *daemon, *logged) {
	t.Helper()
	h, log := newHost(), &logged{}
	d := newDaemon(t, h)
	d.tweak = func(o *Options) {
		o.SweepEvery, o.SweepAge = 20*time.Millisecond, 50*time.Millisecond
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
	}
	return h, d, log
}

func TestTheSweepRemovesWhatProvablyBelongsToNobodyAndNothingElse(t *testing.T) {
	h, d, log := sweeping(t)
	d.start(nil)
	d.create(one)
	d.create(two)
	d.running(one)
	d.running(two)
	d.remove(two)
	d.gone(two)
	// A crash that never was: things of a machine that is gone, of a living one that does not know of them, and of one
	// that this state root has never seen.
	h.mu.Lock()
	h.nics[two+"/late"], h.nics[one+"/unknown"], h.nics[three+"/foreign"] = true, true, true
	h.held[two+"/late"], h.held[one+"/unknown"], h.held[three+"/foreign"] = true, true, true
	h.mu.Unlock()
	removed, foreign, unknown := d.r.o.machineDir(two), d.r.o.machineDir(three), filepath.Join(d.r.o.machineDir(one), "volumes", "unknown")
	for _, dir := range []string{removed, foreign, unknown} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.until("swept", one, func(*machine.Machine) bool {
		_, err := os.Stat(removed)
		return os.IsNotExist(err) && h.read(func() int { return len(h.nics) + len(h.held) }) == 2+2
	})
	log.until(t, three, "never known")
	log.until(t, foreign, "left alone")
	log.until(t, unknown, "left alone")
	for _, dir := range []string{foreign, unknown} {
		if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
			t.Error(err)
		}
	}
	if !h.nics[one+"/primary"] || !h.nics[three+"/foreign"] || !h.held[one+"/root"] || !h.held[three+"/foreign"] {
		t.Errorf("left: %v %v", h.nics, h.held)
	}
	if m := d.running(one); !d.asWanted(m) {
		t.Errorf("the machine was disturbed: %+v", m.Record)
	}
}

func TestTheSweepLeavesAloneWhatIsYoungOrInUse(t *testing.T) {
	h, d, log := sweeping(t)
	tweak := d.tweak
	d.tweak = func(o *Options) { tweak(o); o.SweepAge = time.Hour }
	d.start(nil)
	d.create(one)
	d.running(one)
	if err := d.r.noteRemoved(four); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.nics[four+"/nic"] = true
	h.mu.Unlock()
	time.Sleep(100 * time.Millisecond) // several sweeps
	if !h.nics[four+"/nic"] {
		t.Error("young")
	}
	d.stop()
	d.tweak = tweak
	d.start(nil)
	marker := d.store.ID() + "/" + four + "/x"
	if _, err := d.r.o.Supervisor.Start(t.Context(), process.Spec{Name: "late", Argv: []string{"vmm"}, Marker: marker}); err != nil {
		t.Fatal(err)
	}
	log.until(t, four, "whose VMM lives")
	if !h.nics[four+"/nic"] {
		t.Error("taken from under a VMM")
	}
}

func TestNothingIsSweptWithAStoreThatIsNotTheOneOfTheDirectories(t *testing.T) {
	h, d, log := sweeping(t)
	if err := os.MkdirAll(filepath.Join(d.dir, "machines", three, "volumes"), 0o750); err != nil {
		t.Fatal(err)
	}
	h.nics[three+"/nic"], h.held[three+"/v"] = true, true
	d.start(nil)
	log.until(t, "nothing is swept")
	d.stop()
	if !h.nics[three+"/nic"] || !h.held[three+"/v"] {
		t.Error("swept")
	}
}

func TestTheListOfRemovedMachinesIsBounded(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	var all strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&all, "%036d\n", i)
	}
	if err := os.WriteFile(filepath.Join(d.dir, removedFile), []byte(all.String()), 0o640); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ids, err := d.r.removedMachines()
		if err != nil || len(ids) < 10_000 || len(ids) > 20_000 || !ids[fmt.Sprintf("%036d", 39_999)] {
			t.Errorf("%d machines, %v", len(ids), err)
		}
	}
}

// TestAVMMWhoseEventsEndAtOnceIsNotAskedWithoutPause has connections that end as soon as they are made.
func TestAVMMWhoseEventsEndAtOnceIsNotAskedWithoutPause(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.tweak = func(o *Options) { o.MaxBackoff = DefaultMaxBackoff }
	d.start(nil)
	d.create(one)
	d.running(one)
	h.mu.Lock()
	h.brief = true
	for _, ch := range h.guests[one].events {
		select {
		case ch <- vmm.Event{Kind: vmm.EventResync}:
		default:
		}
	}
	before := h.asked["inspect"]
	h.mu.Unlock()
	d.r.session(one).connected().Close()
	time.Sleep(500 * time.Millisecond)
	if n := h.read(func() int { return h.asked["inspect"] }) - before; n > 12 {
		t.Errorf("asked %d times in half a second", n)
	}
	h.mu.Lock()
	h.brief = false
	h.mu.Unlock()
}
