// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/event"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/health"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// Store is what is asked of the store. All of it answers from memory.
type Store interface {
	List() []*machine.Machine
	Usage(without ...string) store.Usage
	Quarantined() []store.Quarantined
}

// Work is what is asked of the reconciler.
type Work interface {
	QueueLength() int
	// Counters asks a VMM; it is called in the background alone.
	Counters(ctx context.Context, id string) ([]vmm.DeviceCounters, error)
}

// Process is what the kernel says of a VMM process.
type Process struct {
	CPU           time.Duration // user and system time since it was started
	ResidentBytes uint64        // guest memory that was touched included
}

// Sources is where a scrape finds what it tells.
type Sources struct {
	Store    Store
	Work     Work
	Classes  *class.Set
	Host     class.Host
	Reserve  class.Reserve
	Drivers  []Driver
	Events   func() event.Stats
	Consoles func() console.Stats
	Checks   func() []health.Result
	ImageDir string // of the image cache; "" = its size is not told
	// PerMachine is how many machines have metrics of their own, the oldest first; 0 = none.
	PerMachine int

	Interval time.Duration // between two looks at what is not in memory; default 30s
	// Process reads the CPU time and memory of a process, if it is still the one that is meant; default: /proc. It must
	// not block.
	Process func(id machine.ProcessIdentity) (Process, error)
	Now     func() time.Time // default time.Now
}

// DefaultInterval is how often devices' counters and the image cache are looked at.
const DefaultInterval = 30 * time.Second

func (s *Sources) complete() error {
	for name, missing := range map[string]bool{
		"Store": s.Store == nil, "Work": s.Work == nil, "Classes": s.Classes == nil, "Events": s.Events == nil,
		"Consoles": s.Consoles == nil, "Checks": s.Checks == nil,
	} {
		if missing {
			return errors.New("metrics: source " + name + " is missing")
		}
	}
	if s.Interval <= 0 {
		s.Interval = DefaultInterval
	}
	if s.Process == nil {
		s.Process = newProcessReader()
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	return nil
}

// Watch adds what is told at a scrape and returns the sampler of what is not in memory.
func (m *Metrics) Watch(s Sources) (*Sampler, error) {
	if err := s.complete(); err != nil {
		return nil, err
	}
	sampler := &Sampler{s: s}
	return sampler, m.registry.Register(newCollector(s, sampler))
}
