// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// change is one machine as it is after a commit; nil means removed.
type change struct {
	id string
	m  *machine.Machine
}

// index is what readers see.
type index struct {
	mu      sync.RWMutex
	byID    map[string]*machine.Machine
	byUID   map[string]string   // value of UIDLabel to id
	list    []*machine.Machine  // sorted; once taken, what lies below its length is never written to
	taken   atomic.Bool         // by a reader
	usage   Usage               // of all in byID
	watches map[*Watch]struct{} // nil once closed
}

func newIndex() *index {
	return &index{
		byID: map[string]*machine.Machine{}, byUID: map[string]string{}, watches: map[*Watch]struct{}{},
	}
}

func (x *index) get(id string) *machine.Machine {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.byID[id]
}

func (x *index) getByUID(uid string) *machine.Machine {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.byID[x.byUID[uid]]
}

func (x *index) all() []*machine.Machine {
	x.mu.RLock()
	defer x.mu.RUnlock()
	x.taken.Store(true)
	return slices.Clip(x.list)
}

// fill puts in what was loaded.
func (x *index) fill(machines []*machine.Machine) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.list = machines
	slices.SortFunc(x.list, order)
	for _, m := range machines {
		x.byID[m.ID] = m
		x.usage.add(m, 1)
		if u := uid(m); u != "" {
			x.byUID[u] = m.ID
		}
	}
}

// publish shows changes to readers, then to watches.
func (x *index) publish(changes []change) {
	if len(changes) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	// Two passes over the labels: a value may move from one machine to another within one commit.
	for _, c := range changes {
		if old := x.byID[c.id]; old != nil {
			delete(x.byUID, uid(old))
		}
	}
	list := listEdit{list: x.list, shared: x.taken.Load()}
	for _, c := range sorted(changes) {
		list.apply(x.byID[c.id], c.m)
		x.usage.add(x.byID[c.id], -1)
		x.usage.add(c.m, 1)
		if c.m == nil {
			delete(x.byID, c.id)
			continue
		}
		x.byID[c.id] = c.m
		if u := uid(c.m); u != "" {
			x.byUID[u] = c.id
		}
	}
	x.list = list.list
	x.taken.Store(list.shared)
	for w := range x.watches {
		w.add(changes)
	}
}

// sorted returns changes in the order of the list, so that machines made in one commit are appended to it.
func sorted(changes []change) []change {
	return slices.SortedFunc(slices.Values(changes), func(a, b change) int {
		if a.m == nil || b.m == nil { // removals first
			return cmp.Or(cmp.Compare(btoi(a.m != nil), btoi(b.m != nil)), cmp.Compare(a.id, b.id))
		}
		return order(a.m, b.m)
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (x *index) close() {
	x.mu.Lock()
	watches := x.watches
	x.watches = nil
	x.mu.Unlock()
	for w := range watches {
		w.end()
	}
}

// listEdit changes a sorted list that readers may share. Appending is safe in place, as readers hold shorter slices;
// for anything else a shared list is copied once.
type listEdit struct {
	list   []*machine.Machine
	shared bool
}

func (e *listEdit) own() {
	if e.shared {
		e.list = append(make([]*machine.Machine, 0, len(e.list)+len(e.list)/8+16), e.list...)
		e.shared = false
	}
}

func (e *listEdit) apply(before, after *machine.Machine) {
	if before != nil {
		i, found := slices.BinarySearchFunc(e.list, before, order)
		switch {
		case !found:
		case after != nil && order(before, after) == 0:
			e.own()
			e.list[i] = after
			return
		default:
			e.own()
			e.list = slices.Delete(e.list, i, i+1)
		}
	}
	if after == nil {
		return
	}
	i, _ := slices.BinarySearchFunc(e.list, after, order)
	if i < len(e.list) {
		e.own()
	}
	e.list = slices.Insert(e.list, i, after)
}

func order(a, b *machine.Machine) int {
	return cmp.Or(a.Desired.CreatedAt.Compare(b.Desired.CreatedAt), cmp.Compare(a.ID, b.ID))
}

func uid(m *machine.Machine) string { return m.Desired.Labels[UIDLabel] }
