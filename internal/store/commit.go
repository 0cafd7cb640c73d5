// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// probeKey is the key, in the meta bucket, that WriteProbe writes.
const probeKey = "probe"

// fillPercent is how full bbolt leaves a page that it splits: new keys come last.
const fillPercent = 0.9

// health is the outcome of the most recent write.
type health struct {
	mu  sync.Mutex
	err error
}

func (h *health) set(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}

// Healthy returns the error of the most recent write if it failed for a reason of disk or database, and nil after
// a success. While the disk is full it stays an error although deletions are recorded.
func (s *Store) Healthy() error {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	return s.health.err
}

// commit makes a batch durable. Ops that may not use the reserve are taken out of it when the disk is full.
func (s *Store) commit(b *batch) error {
	if b.empty() {
		return nil
	}
	err := s.settle()
	if err == nil {
		err = s.commitBatch(b)
	}
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
	if !s.haveRoom(b.bytes) {
		b.refuse()
	}
	for !b.empty() {
		limit := s.size - s.reserve
		if b.full {
			limit = s.size
		}
		err := s.transact(limit, b.writeTo, b.changes)
		if !errors.Is(err, bolterrors.ErrMaxSizeReached) {
			return err
		}
		if s.grow(2*b.bytes) == nil {
			continue
		}
		if b.full {
			return errFull() // nothing but deletions left, and the reserve is used up
		}
		b.refuse()
	}
	return nil
}

func (b *batch) writeTo(tx *bolt.Tx) error {
	desired, record := tx.Bucket([]byte(desiredBucket)), tx.Bucket([]byte(recordBucket))
	desired.FillPercent, record.FillPercent = fillPercent, fillPercent
	for _, id := range b.order {
		st, ok := b.staged[id]
		if !ok {
			continue
		}
		key := b.store.key(id)
		for _, half := range []struct {
			bucket *bolt.Bucket
			value  []byte
		}{{desired, st.desired}, {record, st.record}} {
			var err error
			if st.m == nil {
				err = half.bucket.Delete(key)
			} else if half.value != nil {
				err = half.bucket.Put(key, half.value)
			}
			if err != nil {
				return err
			}
		}
	}
	if !b.probed {
		return nil
	}
	return putProbe(tx, b.store.clock())
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

func putProbe(tx *bolt.Tx, now time.Time) error {
	return tx.Bucket([]byte(metaBucket)).Put([]byte(probeKey), []byte(now.UTC().Format(time.RFC3339Nano)))
}

// settle deals with an earlier commit that failed once all was written, so that nobody knows whether it would
// survive a crash: its callers were told that it failed, yet bbolt goes on from its state. The next commit makes it
// durable, so it is shown as soon as one succeeds, and nothing is built on it before.
func (s *Store) settle() error {
	if s.unsettled == nil {
		return nil
	}
	changes := s.unsettled
	err := s.transact(s.size, func(tx *bolt.Tx) error { return putProbe(tx, s.clock()) }, func() []change { return changes })
	if err != nil {
		return err
	}
	s.unsettled = nil
	s.show(changes)
	return nil
}

// transact runs one bbolt transaction that may use the file up to limit. changes tells what it changes, in case it
// fails so late that it has to be settled.
func (s *Store) transact(limit int64, fill func(*bolt.Tx) error, changes func() []change) error {
	if s.broken != nil {
		return s.broken
	}
	start := time.Now()
	var txid int
	err := s.guard(func() error {
		s.db.MaxSize = int(limit)
		tx, err := s.db.Begin(true)
		if err != nil {
			return err
		}
		txid = tx.ID()
		if err := fill(tx); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if err := s.hooks.commit(tx); err != nil {
			s.guardRollback(tx)
			return err
		}
		return nil
	})
	switch {
	case err == nil:
		s.commitAvg += (time.Since(start) - s.commitAvg) / 8
		return nil
	case errors.Is(err, bolterrors.ErrMaxSizeReached):
		return err
	}
	if s.landed(txid) {
		s.unsettled = append([]change{}, changes()...)
	}
	return machine.Wrap(kindOfIO(err), err, "commit to store")
}

// guardRollback ends a transaction whose commit failed; bbolt has mostly done so itself.
func (s *Store) guardRollback(tx *bolt.Tx) {
	if err := tx.Rollback(); err != nil && !errors.Is(err, bolterrors.ErrTxClosed) {
		s.log.Error("roll back store transaction", "error", err)
	}
}

// landed reports whether bbolt went on to the state of a transaction in spite of its error.
func (s *Store) landed(txid int) bool {
	if s.broken != nil {
		return false
	}
	var now int
	err := s.guard(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			now = tx.ID()
			return nil
		})
	})
	return err == nil && txid != 0 && now >= txid
}

// guard turns a panic of bbolt, or a fault on its mapping, into an error that ends all writing: bbolt's state in
// memory cannot be trusted any more, that on disk can, and a restart reads it.
func (s *Store) guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.broken = machine.Errorf(machine.Unavailable, "store is broken until the daemon restarts: %v", p)
			err = s.broken
		}
	}()
	return fn()
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
