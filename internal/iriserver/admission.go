// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// admit reserves what a machine needs, or says what is short. The poollet counts each class by itself, so that the
// sum must be watched here. admitted ends the reservation, once the store has the machine or refused it.
func (s *Server) admit(id string, want machine.Resources) error {
	s.admission.Lock()
	defer s.admission.Unlock()
	used := s.used()
	used.machines++
	used.cpus += want.CPUs
	used.memory += want.MemoryBytes + s.o.Reserve.MemoryPerMachine
	free := class.Free(s.o.Host, s.o.Reserve)
	switch {
	case free.Machines > 0 && used.machines > free.Machines:
		return machine.Errorf(machine.Exhausted, "the host is full: at most %d machines", free.Machines)
	case used.cpus > free.CPUs:
		return machine.Errorf(machine.Exhausted, "the host is full: %d virtual CPUs would be used of %d", used.cpus, free.CPUs)
	case used.memory > free.MemoryBytes:
		return machine.Errorf(machine.Exhausted, "the host is full: %d bytes of memory would be used of %d", used.memory, free.MemoryBytes)
	}
	s.admitting[id] = want
	return nil
}

func (s *Server) admitted(id string) {
	s.admission.Lock()
	defer s.admission.Unlock()
	delete(s.admitting, id)
}

type usage struct{ machines, cpus, memory int64 }

// used sums up the stored machines and those on their way there. The caller holds the admission lock.
func (s *Server) used() usage {
	ids := slices.Collect(maps.Keys(s.admitting))
	stored := s.o.Store.Usage(ids...)
	u := usage{machines: stored.Machines + int64(len(ids)), cpus: stored.CPUs, memory: stored.MemoryBytes}
	for _, r := range s.admitting {
		u.cpus += r.CPUs
		u.memory += r.MemoryBytes
	}
	u.memory += u.machines * s.o.Reserve.MemoryPerMachine
	return u
}

// newID makes a UUID that rises with time (version 7): machines that are created together lie together in the store,
// so that one write of few pages holds many of them.
func newID() string { return uuid.Must(uuid.NewV7()).String() }
