// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package ceph

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func TestAClusterThatKeptSilentIsNotAskedAgainAtOnce(t *testing.T) {
	now := time.Unix(1000, 0)
	g := newGate(func() time.Time { return now })
	silent := &silenceError{machine.Errorf(machine.Unavailable, "no monitor answers")}
	asked := 0
	ask := func(monitors ...string) error {
		_, err := g.open(t.Context(), Image{Monitors: monitors}, func(context.Context, Image) (int64, error) { asked++; return 0, silent })
		return err
	}
	for _, monitors := range [][]string{{"a:1", "b:1"}, {"b:1", "a:1"}, {"a:1", "b:1"}} {
		if err := ask(monitors...); !machine.IsKind(err, machine.Unavailable) {
			t.Errorf("%v: %v", monitors, err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	if _ = ask("c:1"); asked != 2 {
		t.Error("another cluster was not asked")
	}
	now = now.Add(silentFor + time.Second)
	if _ = ask("a:1", "b:1"); asked != 3 {
		t.Error("it is not asked again later")
	}
	now = now.Add(-time.Hour) // a clock that is set back
	if _ = ask("a:1", "b:1"); asked != 4 {
		t.Error("it is not asked again after the clock was set back")
	}
}

func TestAnImageThatCannotBeOpenedSilencesNobody(t *testing.T) {
	g := newGate(time.Now)
	asked := 0
	for range 3 {
		_, _ = g.open(t.Context(), Image{Monitors: []string{"a:1"}}, func(context.Context, Image) (int64, error) {
			asked++
			return 0, machine.Errorf(machine.FailedPrecondition, "wrong key")
		})
	}
	if asked != 3 {
		t.Errorf("asked %d times", asked)
	}
}

func TestImagesThatTakeLongLeaveOthersTheirTurn(t *testing.T) {
	g := newGate(time.Now)
	var opening atomic.Int32
	release := make(chan struct{})
	var all sync.WaitGroup
	for range maxOpenings {
		all.Go(func() {
			_, _ = g.open(t.Context(), Image{}, func(context.Context, Image) (int64, error) { opening.Add(1); <-release; return 1, nil })
		})
	}
	for deadline := time.Now().Add(time.Minute); opening.Load() < maxOpenings; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("they do not begin")
		}
	}
	start := time.Now()
	_, err := g.open(t.Context(), Image{}, func(context.Context, Image) (int64, error) { return 1, nil })
	if took := time.Since(start); !machine.IsKind(err, machine.Unavailable) || took > 20*time.Second {
		t.Errorf("one more: %v after %s", err, took)
	}
	close(release)
	all.Wait()
	if n, err := g.open(t.Context(), Image{}, func(context.Context, Image) (int64, error) { return 7, nil }); n != 7 || err != nil {
		t.Errorf("afterwards: %d, %v", n, err)
	}
}
