// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package ceph

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// Bounds of what images that cannot be opened may take of this program. Each try occupies one of the reconciler's
// workers (15 by default): what is sick must leave enough of them to all the others.
const (
	maxOpenings = 6               // images opened at once
	openingWait = time.Second     // how long one more waits for its turn; an opening takes 0.1 s when all is well
	silentFor   = 5 * time.Second // how long a cluster that did not answer is not asked again
)

// gate keeps clusters that do not answer from holding up everybody else.
type gate struct {
	now   func() time.Time
	slots chan struct{}

	mu     sync.Mutex
	silent map[string]silence // by monitors
}

// silence is a cluster whose monitors did not answer.
type silence struct {
	since time.Time
	err   error
}

func newGate(now func() time.Time) *gate {
	return &gate{now: now, slots: make(chan struct{}, maxOpenings), silent: map[string]silence{}}
}

// open calls inspect when it is the image's turn, and remembers for a while that no monitor answered.
func (g *gate) open(ctx context.Context, image Image, inspect func(context.Context, Image) (int64, error)) (int64, error) {
	cluster := strings.Join(slices.Sorted(slices.Values(image.Monitors)), ",")
	g.mu.Lock()
	for name, s := range g.silent {
		if age := g.now().Sub(s.since); age < 0 || age > silentFor {
			delete(g.silent, name)
		}
	}
	known, silent := g.silent[cluster]
	g.mu.Unlock()
	if silent {
		return 0, known.err
	}
	timer := time.NewTimer(openingWait)
	defer timer.Stop()
	select {
	case g.slots <- struct{}{}:
		defer func() { <-g.slots }()
	case <-timer.C:
		return 0, machine.Errorf(machine.Unavailable, "open image %s: %d others are being opened and take long", image, maxOpenings)
	case <-ctx.Done():
		return 0, machine.Wrap(machine.Unavailable, ctx.Err(), "open image "+image.String())
	}
	bytes, err := inspect(ctx, image)
	if isSilence(err) && ctx.Err() == nil {
		g.mu.Lock()
		g.silent[cluster] = silence{since: g.now(), err: err}
		g.mu.Unlock()
	}
	return bytes, err
}
