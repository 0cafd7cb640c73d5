// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// health is how writing goes.
type health struct {
	mu         sync.Mutex
	write      error // of the most recent write
	checkpoint error // of the most recent checkpoint
	broken     error // set when bbolt panicked: no further writes
}

func (h *health) set(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.write = err
}

// setCheckpoint notes the outcome of a checkpoint, and reports whether it is news.
func (h *health) setCheckpoint(err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	news := (err == nil) != (h.checkpoint == nil)
	h.checkpoint = err
	return news
}

func (h *health) lagging() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.checkpoint != nil
}

func (h *health) isBroken() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.broken
}

func (h *health) setBroken(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken = err
}

// Healthy returns the error of the most recent write if it failed for a reason of disk or database, or why what the
// journal holds cannot be brought into state.db, and nil after a success. While the disk is full it stays an error
// although deletions are recorded.
func (s *Store) Healthy() error {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	if s.health.write != nil {
		return s.health.write
	}
	return s.health.checkpoint
}

// commit makes a batch durable. Ops that may not use the reserve are taken out of it when the disk is full.
func (s *Store) commit(b *batch) error {
	if b.empty() {
		return nil
	}
	err := s.commitBatch(b)
	switch {
	case err != nil:
		s.log.Error("store write failed", "error", err)
		s.health.set(err)
	case b.full:
		s.log.Warn("store refused writes since the disk is full", "refused", len(b.refused))
		s.health.set(errFull())
	default:
		s.health.set(nil)
	}
	return err
}

func (s *Store) commitBatch(b *batch) error {
	if s.health.lagging() {
		s.startCheckpoint()
		_ = s.awaitCheckpoint() // the journal takes writes all the same, as long as it has room
	}
	if err := s.health.isBroken(); err != nil {
		return err
	}
	if !s.haveRoom(b.bytes) {
		b.refuse()
	}
	if b.empty() {
		return nil
	}
	entries := b.entries()
	if err := s.append(entries); err != nil {
		return machine.Wrap(kindOfIO(err), err, "write to store")
	}
	for _, e := range entries {
		s.backlog.add(e)
	}
	if s.due == nil && len(entries) > 0 {
		s.due = time.After(s.hooks.checkpointAfter)
	}
	return nil
}

// append makes entries durable in the journal. Where that is full it waits for a checkpoint.
func (s *Store) append(entries []entry) error {
	record := s.journal.encode(entries)
	for !s.journal.hasRoom(len(record)) {
		switch {
		case s.startCheckpoint():
			if err := s.awaitCheckpoint(); err != nil {
				return err
			}
		default: // all of it is in state.db, so it is too small
			if err := s.allocateJournal(s.journal.file, s.journal.size, int64(len(record))); err != nil {
				return fmt.Errorf("make room in journal: %w", err)
			}
			s.journal.size = int64(len(record))
		}
	}
	return s.journal.append(record, len(entries) == 0)
}

// entries is what a batch changes, as the journal keeps it.
func (b *batch) entries() []entry {
	entries := make([]entry, 0, 2*len(b.order))
	for _, id := range b.order {
		st, ok := b.staged[id]
		if !ok {
			continue
		}
		key := b.store.key(id)
		if st.m == nil {
			entries = append(entries, entry{kind: removal, key: key})
			continue
		}
		if st.desired != nil {
			entries = append(entries, entry{putDesired, key, st.desired})
		}
		if st.record != nil {
			entries = append(entries, entry{putRecord, key, st.record})
		}
	}
	return entries
}

// key returns where a machine is stored, or will be.
func (s *Store) key(id string) []byte {
	n, ok := s.sequences[id]
	if !ok {
		s.sequence++
		n = s.sequence
		s.sequences[id] = n
	}
	return makeKey(n, id)
}

func errFull() error {
	return machine.Errorf(machine.Exhausted, "no space left for the store; free space on its file system")
}

// kindOfIO tells a full disk from other failures.
func kindOfIO(err error) machine.Kind {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, bolterrors.ErrMaxSizeReached} {
		if errors.Is(err, full) {
			return machine.Exhausted
		}
	}
	if kind := machine.KindOf(err); kind != machine.Unknown {
		return kind
	}
	return machine.Unavailable
}

// String helps in failed tests.
func (c change) String() string { return fmt.Sprintf("%s: %v", c.id, c.m) }
