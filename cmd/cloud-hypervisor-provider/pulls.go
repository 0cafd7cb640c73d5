// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"sync"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/event"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
)

// pulls tells the machines that wait for an image how its pull goes, and wakes them when it ended.
type pulls struct {
	parts  *parts
	store  *store.Store
	events *event.Recorder

	mu       sync.Mutex
	quarters map[string]int64 // told so far, by reference
}

func (p *pulls) observe(ev image.Event) {
	r := p.parts.reconciler
	if r == nil { // a pull cannot begin before the first machine is looked at
		return
	}
	if kind, reason, text := p.describe(ev); reason != "" {
		for _, id := range r.ImageWaiters(ev.Ref) {
			if m, err := p.store.Get(id); err == nil {
				(recorder{p.events}).Event(m, kind, reason, "PullImage", text)
			}
		}
	}
	if ev.Kind == image.PullSucceeded || ev.Kind == image.PullFailed {
		r.ImageChanged(ev.Ref)
	}
}

// describe puts a pull's event into words. Progress is told at each quarter, so that it does not drive other events
// out.
func (p *pulls) describe(ev image.Event) (kind, reason, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quarters == nil {
		p.quarters = map[string]int64{}
	}
	switch ev.Kind {
	case image.PullStarted:
		delete(p.quarters, ev.Ref)
		if ev.Verifying {
			return reconcile.Normal, "PullingImage", "verifying image " + ev.Ref + ", which is in the cache"
		}
		return reconcile.Normal, "PullingImage", "pulling image " + ev.Ref
	case image.PullProgress:
		if ev.Total <= 0 {
			return "", "", ""
		}
		quarter := 4 * ev.Done / ev.Total
		if quarter < 1 || quarter > 3 || quarter <= p.quarters[ev.Ref] {
			return "", "", ""
		}
		p.quarters[ev.Ref] = quarter
		doing := "pulled"
		if ev.Verifying {
			doing = "verified"
		}
		return reconcile.Normal, "PullingImage", fmt.Sprintf("image %s: %d/4 of %d MiB %s", ev.Ref, quarter, ev.Total>>20, doing)
	case image.PullSucceeded:
		delete(p.quarters, ev.Ref)
		return reconcile.Normal, "ImagePullSucceeded", "image " + ev.Ref + " is here"
	case image.PullFailed:
		delete(p.quarters, ev.Ref)
		return reconcile.Warning, "ImagePullFailed", ev.Err.Error()
	}
	return "", "", ""
}
