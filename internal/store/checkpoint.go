// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// fillPercent is how full bbolt leaves a page that it splits: new keys come last.
const fillPercent = 0.9

// checkpoint is what is on its way from the journal into state.db, so that the journal can use its room again.
type checkpoint struct {
	backlog  backlog
	sequence uint64 // of its last record
	end      int64  // of that record in the journal
	done     chan error
}

// startCheckpoint begins a checkpoint of all that is left, unless one is under way, and reports whether one is now.
func (s *Store) startCheckpoint() bool {
	if s.underWay != nil || s.backlog.empty() {
		return s.underWay != nil
	}
	c := &checkpoint{backlog: s.backlog, sequence: s.journal.sequence, end: s.journal.tail, done: s.applied}
	s.underWay = c
	s.backlog = newBacklog()
	s.journal.fresh = 0
	s.due = nil
	go func() {
		debug.SetPanicOnFault(true) // a file cut off below bbolt shows as a fault; see guard
		c.done <- s.apply(c)
	}()
	return true
}

// awaitCheckpoint waits for the checkpoint that is under way, if any.
func (s *Store) awaitCheckpoint() error {
	if s.underWay == nil {
		return nil
	}
	return s.endCheckpoint(<-s.applied)
}

// endCheckpoint draws the consequences. After an error everything is as durable as before, and the next write or some
// time leads to another try.
func (s *Store) endCheckpoint(err error) error {
	c := s.underWay
	s.underWay = nil
	if news := s.health.setCheckpoint(err); news && err != nil {
		s.log.Error("store cannot bring its journal into the database", "error", err, "bytes", c.backlog.bytes)
	} else if news {
		s.log.Info("store has brought its journal into the database")
	}
	if err != nil {
		s.backlog = c.backlog.followedBy(s.backlog)
		s.due = time.After(s.hooks.checkpointAfter)
		return err
	}
	s.journal.release(c.end)
	return nil
}

// apply writes a backlog into state.db. Only the last transaction says how far state.db has come: if an earlier one is
// all that survives, all of it is replayed, which ends in the same state.
func (s *Store) apply(c *checkpoint) error {
	parts := c.backlog.keys(int(min(maxBatchBytes, s.reserve/4)))
	for i, keys := range parts {
		err := s.transact(func(tx *bolt.Tx) error {
			if err := c.backlog.writeTo(tx, keys); err != nil || i < len(parts)-1 {
				return err
			}
			return tx.Bucket([]byte(metaBucket)).Put([]byte(appliedKey), binary.BigEndian.AppendUint64(nil, c.sequence))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// transact runs one bbolt transaction, which may use all of the file.
func (s *Store) transact(fill func(*bolt.Tx) error) error {
	for {
		if err := s.health.isBroken(); err != nil {
			return err
		}
		err := s.guard(func() error {
			s.db.MaxSize = int(s.allocated())
			tx, err := s.db.Begin(true)
			if err != nil {
				return err
			}
			if err := fill(tx); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			if err := s.hooks.commit(tx); err != nil {
				s.guardRollback(tx)
				return err
			}
			return nil
		})
		if err == nil {
			err = s.measure()
		}
		if !errors.Is(err, bolterrors.ErrMaxSizeReached) {
			return machine.Wrap(kindOfIO(err), err, "commit to store")
		}
		if s.grow(0) != nil {
			return errFull() // the reserve is used up
		}
	}
}

// guardRollback ends a transaction whose commit failed; bbolt has mostly done so itself.
func (s *Store) guardRollback(tx *bolt.Tx) {
	if err := tx.Rollback(); err != nil && !errors.Is(err, bolterrors.ErrTxClosed) {
		s.log.Error("roll back store transaction", "error", err)
	}
}

// guard turns a panic of bbolt, or a fault on its mapping, into an error that ends all writing: bbolt's state in
// memory cannot be trusted any more, that on disk can, and a restart reads it.
func (s *Store) guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = machine.Errorf(machine.Unavailable, "store is broken until the daemon restarts: %v", p)
			s.health.setBroken(err)
		}
	}()
	return fn()
}
