// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"

// Usage is what the stored machines need together.
type Usage struct {
	Machines    int64
	CPUs        int64
	MemoryBytes int64 // of the guests alone
}

func (u *Usage) add(m *machine.Machine, sign int64) {
	if m == nil {
		return
	}
	u.Machines += sign
	u.CPUs += sign * m.Desired.Resources.CPUs
	u.MemoryBytes += sign * m.Desired.Resources.MemoryBytes
}

// Usage returns what the stored machines need, without those of the given ids whether they are stored yet or not. It
// is kept up to date with each change, so that it costs the same however many machines there are.
func (s *Store) Usage(without ...string) Usage {
	x := s.index
	x.mu.RLock()
	defer x.mu.RUnlock()
	u := x.usage
	for _, id := range without {
		u.add(x.byID[id], -1)
	}
	return u
}
