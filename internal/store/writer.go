// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"runtime"
	"runtime/debug"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// Limits of one record, and of one transaction of a checkpoint. They bound what a failed write takes with it, and what
// has to fit into the reserve.
const (
	maxBatch      = 256
	maxBatchBytes = 1 << 20
)

// probeRoom is what a probe asks for, in bytes: it shall tell whether there is room for a common machine.
const probeRoom = 16 << 10

// op is one write on its way through the writer.
type op struct {
	ctx    context.Context
	stage  func(*batch, *op) (*machine.Machine, error)
	answer chan answer // has room for the one answer

	depends string // id whose staged state the answer is built on; "" if it is built on published state alone
	probe   bool   // depends on the commit as such
	result  answer
}

type answer struct {
	m   *machine.Machine
	err error
}

// do hands a write to the writer and waits for the answer.
func (s *Store) do(ctx context.Context, stage func(*batch, *op) (*machine.Machine, error)) (*machine.Machine, error) {
	if err := ctx.Err(); err != nil {
		return nil, machine.Wrap(machine.Unavailable, err, "write to store")
	}
	o := &op{ctx: ctx, stage: stage, answer: make(chan answer, 1)}
	if err := s.send(ctx, o); err != nil {
		return nil, err
	}
	select {
	case a := <-o.answer:
		return a.m, a.err
	case <-ctx.Done():
		return nil, machine.Wrap(machine.Unavailable, ctx.Err(), "wait for a write, which may still happen")
	}
}

func (s *Store) send(ctx context.Context, o *op) error {
	s.submit.RLock()
	defer s.submit.RUnlock()
	if s.closed {
		return machine.Errorf(machine.Unavailable, "store is closed")
	}
	select {
	case s.ops <- o:
		return nil
	case <-ctx.Done():
		return machine.Wrap(machine.Unavailable, ctx.Err(), "write to store")
	}
}

// write is the writer goroutine.
func (s *Store) write() {
	defer close(s.done)
	debug.SetPanicOnFault(true) // a file cut off below bbolt shows as a fault; see guard
	for {
		select {
		case first, ok := <-s.ops:
			if !ok {
				s.finishJournal()
				return
			}
			s.process(s.gather(first))
			if s.journal.fresh > s.journal.size/2 && !s.health.lagging() {
				s.startCheckpoint()
			}
		case <-s.due:
			s.startCheckpoint()
		case err := <-s.applied:
			_ = s.endCheckpoint(err) // it is kept in health
		}
	}
}

// finishJournal leaves everything in state.db, if that works; else the next opening finds it in the journal.
func (s *Store) finishJournal() {
	_ = s.awaitCheckpoint()
	s.startCheckpoint()
	if s.awaitCheckpoint() != nil || s.health.isBroken() != nil {
		return
	}
	if err := s.journal.clear(); err != nil {
		s.log.Warn("journal of the store could not be cleared", "error", err)
	}
}

// gather collects the writes of one record. Writers that it has just served come back as soon as they get a processor,
// so it lets them have it as long as that brings more: N closed-loop writers then share few syncs.
func (s *Store) gather(first *op) []*op {
	ops := append(make([]*op, 0, s.expected+1), first)
	for yielded := false; len(ops) < maxBatch; {
		select {
		case o, ok := <-s.ops:
			if !ok {
				return ops
			}
			ops, yielded = append(ops, o), false
			continue
		default:
		}
		if yielded || len(ops) >= s.expected {
			break
		}
		runtime.Gosched()
		yielded = true
	}
	return ops
}

// process stages writes, commits them, shows them and answers, in as many transactions as their size asks for.
func (s *Store) process(ops []*op) {
	count := len(ops)
	for len(ops) > 0 {
		b := newBatch(s)
		n := 0
		for n < len(ops) && (n == 0 || b.bytes < maxBatchBytes) {
			b.run(ops[n])
			n++
		}
		s.finish(b, ops[:n])
		ops = ops[n:]
	}
	s.expected = min(count+len(s.ops), maxBatch)
}

func (s *Store) finish(b *batch, ops []*op) {
	err := s.commit(b)
	if err == nil {
		s.show(b.changes())
	}
	for _, o := range ops {
		if o.final() {
			continue // answered while staging
		}
		a := o.result
		if err != nil {
			a = answer{err: err}
		} else if b.refused[o.depends] || o.probe && b.full {
			a = answer{err: errFull()}
		}
		o.answer <- a
	}
}

// show publishes what has been committed.
func (s *Store) show(changes []change) {
	for _, c := range changes {
		if c.m == nil {
			delete(s.sequences, c.id)
		}
	}
	s.index.publish(changes)
}

func (o *op) final() bool { return o.depends == "" && !o.probe }

// batch is what one transaction will write. Ops are staged one after the other, each on the outcome of those
// before it.
type batch struct {
	store  *Store
	staged map[string]*staged
	order  []string          // keys of staged, in order of their first change
	uids   map[string]string // UIDLabel values that changed hands; "" = free
	bytes  int
	probed bool

	full    bool            // the disk is full: what is left may use the reserve
	refused map[string]bool // ids taken out again for that
}

// staged is the new state of one machine.
type staged struct {
	m               *machine.Machine // nil = removed
	desired, record []byte           // nil = as it was
}

func newBatch(s *Store) *batch {
	return &batch{store: s, staged: map[string]*staged{}, uids: map[string]string{}, refused: map[string]bool{}}
}

// run stages one op, and answers it right away if its result does not hang on this batch.
func (b *batch) run(o *op) {
	if err := o.ctx.Err(); err != nil {
		o.answer <- answer{err: machine.Wrap(machine.Unavailable, err, "write to store")}
		return
	}
	m, err := o.stage(b, o)
	o.result = answer{m: m, err: err}
	if o.final() {
		o.answer <- o.result
	}
}

// current returns the machine as this batch will leave it.
func (b *batch) current(o *op, id string) *machine.Machine {
	if st, ok := b.staged[id]; ok {
		o.depends = id
		return st.m
	}
	return b.store.index.get(id)
}

// currentByUID returns another machine that carries the UIDLabel of m.
func (b *batch) currentByUID(o *op, m *machine.Machine) *machine.Machine {
	u := uid(m)
	if u == "" {
		return nil
	}
	if id, ok := b.uids[u]; ok {
		if id == "" || id == m.ID {
			return nil
		}
		return b.current(o, id)
	}
	if old := b.store.index.getByUID(u); old != nil && old.ID != m.ID {
		return b.current(o, old.ID)
	}
	return nil
}

// put stages the new state of a machine; a nil half stays as it was.
func (b *batch) put(o *op, m *machine.Machine, desired, record []byte) {
	st := b.stage(o, m.ID, m)
	if desired != nil {
		st.desired = desired
	}
	if record != nil {
		st.record = record
	}
	b.bytes += len(desired) + len(record)
}

func (b *batch) remove(o *op, id string) {
	st := b.stage(o, id, nil)
	st.desired, st.record = nil, nil
}

func (b *batch) stage(o *op, id string, m *machine.Machine) *staged {
	if old := b.current(o, id); old != nil && uid(old) != "" {
		b.uids[uid(old)] = ""
	}
	if m != nil && uid(m) != "" {
		b.uids[uid(m)] = id
	}
	st, ok := b.staged[id]
	if !ok {
		st = &staged{}
		b.staged[id] = st
		b.order = append(b.order, id)
	}
	st.m = m
	o.depends = id
	return st
}

func (b *batch) probe(o *op) {
	b.probed = true
	b.bytes += probeRoom
	o.probe = true
}

func (b *batch) empty() bool { return len(b.staged) == 0 && !b.probed }

func (b *batch) changes() []change {
	out := make([]change, 0, len(b.order))
	for _, id := range b.order {
		if st, ok := b.staged[id]; ok {
			out = append(out, change{id: id, m: st.m})
		}
	}
	return out
}

// refuse takes everything out that may not use the reserve: all but removals and machines marked as deleted.
func (b *batch) refuse() {
	b.full = true
	b.probed = false
	for id, st := range b.staged {
		if st.m != nil && !st.m.Desired.Deleting() {
			delete(b.staged, id)
			b.refused[id] = true
		}
	}
}
