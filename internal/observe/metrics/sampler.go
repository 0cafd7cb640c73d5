// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// Bounds of one look at all VMMs.
const (
	askers     = 4
	askTimeout = 2 * time.Second
)

// Sampler looks now and then at what a scrape must not wait for: VMMs and disks.
type Sampler struct {
	s Sources

	mu      sync.Mutex
	devices map[string][]vmm.DeviceCounters // by machine; without those that did not answer last time
	images  int64
	known   bool // images was found out
}

// Run looks until ctx ends.
func (p *Sampler) Run(ctx context.Context) error {
	ticker := time.NewTicker(p.s.Interval)
	defer ticker.Stop()
	for {
		p.Look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Look looks once at everything.
func (p *Sampler) Look(ctx context.Context) {
	p.lookAtImages()
	found := map[string][]vmm.DeviceCounters{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(askers)
	for _, m := range p.s.watched(p.s.Store.List()) {
		if m.Record.VMM == nil || ctx.Err() != nil {
			continue
		}
		group.Go(func() error {
			bounded, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			devices, err := p.s.Work.Counters(bounded, m.ID)
			if err == nil && len(devices) > 0 {
				mu.Lock()
				found[m.ID] = devices
				mu.Unlock()
			}
			return nil // one that does not answer has no counters to tell
		})
	}
	_ = group.Wait()
	p.mu.Lock()
	p.devices = found
	p.mu.Unlock()
}

func (p *Sampler) counters(id string) []vmm.DeviceCounters {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.devices[id]
}

func (p *Sampler) imageBytes() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.images, p.known
}

func (p *Sampler) lookAtImages() {
	if p.s.ImageDir == "" {
		return
	}
	var total int64
	err := filepath.WalkDir(p.s.ImageDir, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() { // else it was removed meanwhile
			if info, err := entry.Info(); err == nil {
				total += allocated(info)
			}
		}
		return nil
	})
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.images, p.known = total, true
}
