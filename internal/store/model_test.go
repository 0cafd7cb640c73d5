// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// model is what a store should hold.
type model struct {
	t        *rapid.T
	base     string
	roots    int
	disk     sync.Mutex // held while state.db is written
	s        *Store
	machines map[string]*machine.Machine
	watch    *Watch
	watched  map[string]*machine.Machine
}

func (m *model) open(dir string) {
	// A journal this small is full, and begins anew, again and again. Checkpoints write to state.db in the background,
	// and a copy must not catch one in the middle: no crash leaves the pages of one moment beside those of another.
	s, err := Open(context.Background(), Options{Dir: dir, hooks: hooks{
		reserve: 64 << 10, checkpointAfter: time.Millisecond,
		commit: func(tx *bolt.Tx) error {
			m.disk.Lock()
			defer m.disk.Unlock()
			return tx.Commit()
		},
	}})
	if err != nil {
		m.t.Fatalf("open: %v", err)
	}
	m.s = s
	m.watch = s.Watch(context.Background(), WatchOptions{Initial: true})
	m.watched = map[string]*machine.Machine{}
}

func (m *model) close() {
	m.watch.Close()
	if err := m.s.Close(); err != nil {
		m.t.Fatalf("close: %v", err)
	}
}

// crash goes on from a copy of the files as they are now, taken while the store is open and in use.
func (m *model) crash(t *rapid.T) {
	m.roots++
	dir := filepath.Join(m.base, fmt.Sprint(m.roots))
	m.disk.Lock()
	err := copyRoot(m.s.dir, dir)
	m.disk.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	m.close()
	if err := os.RemoveAll(m.s.dir); err != nil {
		t.Fatal(err)
	}
	m.open(dir)
}

func ids() *rapid.Generator[string] { return rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}) }

func (m *model) byUID(label, except string) *machine.Machine {
	for id, x := range m.machines {
		if label != "" && id != except && uid(x) == label {
			return x
		}
	}
	return nil
}

func (m *model) create(t *rapid.T) {
	n := testMachine(ids().Draw(t, "id"))
	n.Desired.CreatedAt = epoch.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "created")))
	n.Desired.Labels[UIDLabel] = rapid.SampledFrom([]string{"", "u", "v", "w"}).Draw(t, "uid")
	n.Desired.Ignition = make([]byte, rapid.IntRange(1, 20_000).Draw(t, "ignition"))
	got, err := m.s.Create(context.Background(), n)
	if m.machines[n.ID] != nil || m.byUID(uid(n), n.ID) != nil {
		wantKindRapid(t, err, machine.AlreadyExists)
		return
	}
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	n.Version = 1
	m.accept(t, n, got)
}

func (m *model) updateDesired(t *rapid.T) {
	id := ids().Draw(t, "id")
	class := rapid.SampledFrom([]string{"small", "big"}).Draw(t, "class")
	label := rapid.SampledFrom([]string{"", "u", "v", "w"}).Draw(t, "uid")
	version := rapid.SampledFrom([]uint64{0, 0, 0, 1, 2}).Draw(t, "version")
	got, err := m.s.UpdateDesired(context.Background(), id, version, func(d *machine.Desired) error {
		d.Class, d.Labels[UIDLabel] = class, label
		return nil
	})
	old := m.machines[id]
	switch {
	case old == nil:
		wantKindRapid(t, err, machine.NotFound)
		return
	case version != 0 && version != old.Version:
		wantKindRapid(t, err, machine.Conflict)
		return
	}
	n := old.Clone()
	n.Desired.Class, n.Desired.Labels[UIDLabel] = class, label
	if reflect.DeepEqual(n, old) {
		m.accept(t, old, got)
		return
	}
	if uid(n) != uid(old) && m.byUID(label, id) != nil {
		wantKindRapid(t, err, machine.AlreadyExists)
		return
	}
	n.Version++
	m.accept(t, n, got)
}

func (m *model) updateRecord(t *rapid.T) {
	id := ids().Draw(t, "id")
	restarts := rapid.IntRange(0, 3).Draw(t, "restarts")
	got, err := m.s.UpdateRecord(context.Background(), id, func(r *machine.Record) error {
		r.Restarts = restarts
		return nil
	})
	old := m.machines[id]
	if old == nil {
		wantKindRapid(t, err, machine.NotFound)
		return
	}
	n := old.Clone()
	if n.Record.Restarts != restarts {
		n.Record.Restarts = restarts
		n.Version++
	}
	m.accept(t, n, got)
}

func (m *model) remove(t *rapid.T) {
	id := ids().Draw(t, "id")
	err := m.s.Remove(context.Background(), id)
	if m.machines[id] == nil {
		wantKindRapid(t, err, machine.NotFound)
	} else if err != nil {
		t.Fatalf("remove: %v", err)
	}
	delete(m.machines, id)
}

func (m *model) accept(t *rapid.T, want, got *machine.Machine) {
	if !reflect.DeepEqual(want, got) {
		t.Fatalf("answer differs:\n%s", cmp.Diff(want, got))
	}
	m.machines[want.ID] = want
}

// check compares the store, and what its watch told, with the model.
func (m *model) check(t *rapid.T) {
	want := slices.SortedFunc(maps.Values(m.machines), order)
	if len(want) != len(m.s.List()) || len(want) > 0 && !reflect.DeepEqual(want, m.s.List()) {
		t.Fatalf("list differs:\n%s", cmp.Diff(want, m.s.List()))
	}
	for len(m.watch.queue) > 0 {
		id, got, err := m.watch.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if m.watched[id] = got; got == nil {
			delete(m.watched, id)
		}
	}
	if !reflect.DeepEqual(m.machines, m.watched) {
		t.Fatalf("watch differs:\n%s", cmp.Diff(m.machines, m.watched))
	}
	if q := m.s.Quarantined(); len(q) > 0 {
		t.Fatalf("quarantined: %v", q)
	}
}

func wantKindRapid(t *rapid.T, err error, kind machine.Kind) {
	if !machine.IsKind(err, kind) {
		t.Fatalf("got error %v (%v), want kind %v", err, machine.KindOf(err), kind)
	}
}

func TestStoreBehavesLikeAMapThatSurvivesCrashes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, err := os.MkdirTemp("", "store-model-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(base)
		m := &model{t: t, base: base, machines: map[string]*machine.Machine{}}
		m.open(filepath.Join(base, "0"))
		defer func() { m.close() }()
		t.Repeat(map[string]func(*rapid.T){
			"create": m.create, "updateDesired": m.updateDesired, "updateRecord": m.updateRecord, "remove": m.remove,
			"create again": m.create, "update again": m.updateDesired,
			"crash":  m.crash,
			"reopen": func(*rapid.T) { m.close(); m.open(m.s.dir) },
			"":       m.check,
		})
	})
}
