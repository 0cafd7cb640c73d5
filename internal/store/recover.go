// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// defaultCheckpointAfter is how long a write stays in the journal alone: long enough for a burst to share a
// transaction, short enough for state.db to be nearly complete whenever somebody copies it.
const defaultCheckpointAfter = time.Second

func (s *Store) journalPath() string { return filepath.Join(s.dir, journalName) }

// checkOrphan refuses to begin anew beside a journal that may hold acknowledged writes. Closing leaves none.
func (s *Store) checkOrphan() error {
	f, err := os.Open(s.journalPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return machine.Wrap(kindOfIO(err), err, "open journal")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return machine.Wrap(kindOfIO(err), err, "open journal")
	}
	records, err := (&journal{file: f, size: info.Size()}).find(0)
	if err == nil && len(records) == 0 {
		return nil
	}
	return machine.Errorf(machine.FailedPrecondition,
		"%s is missing, but %s has writes of it; restore the one, or move the other away, too, to begin with nothing",
		s.path(), s.journalPath())
}

// makeJournal makes a journal unless there is one.
func (s *Store) makeJournal() error {
	if _, err := os.Stat(s.journalPath()); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	path := s.journalPath() + ".new"
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = s.allocateJournal(f, 0, s.reserve*journalPerReserve)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return rename(path, s.journalPath())
}

// allocateJournal makes a journal longer. What is new is also written: the first write to a block that is merely
// allocated makes the next sync wait for the journal of the file system.
func (s *Store) allocateJournal(f *os.File, from, to int64) error {
	if err := s.hooks.allocate(f, to); err != nil {
		return err
	}
	return writeZeros(f, from, to)
}

// openJournal reads what the journal has and state.db does not. A daemon that was killed may have left in the kernel's
// memory what is not on the disk yet. It is made durable first: records would be written over since state.db seems to
// have them, or be shown since they seem acknowledged, and then be lost with the power.
func (s *Store) openJournal() error {
	if err := s.file.Sync(); err != nil {
		return machine.Wrap(kindOfIO(err), err, "sync store")
	}
	j := &journal{sync: s.hooks.sync}
	schema, applied, err := s.readMeta(j)
	if err != nil {
		return err
	}
	if _, err := os.Stat(s.journalPath()); errors.Is(err, os.ErrNotExist) && schema >= journalSchema {
		s.log.Error("journal of the store is missing; writes that it alone had are lost", "path", s.journalPath())
	}
	if err := s.makeJournal(); err != nil {
		return machine.Wrap(kindOfIO(err), err, "make journal")
	}
	if j.file, err = os.OpenFile(s.journalPath(), os.O_RDWR, 0); err != nil {
		return machine.Wrap(kindOfIO(err), err, "open journal")
	}
	s.journal = j
	info, err := j.file.Stat()
	if err == nil {
		j.size = info.Size()
		err = j.sync(j.file)
	}
	if err != nil {
		return machine.Wrap(kindOfIO(err), err, "open journal")
	}
	err = j.replay(applied, s.backlog.add)
	if err == nil && schema < journalSchema && !s.backlog.empty() {
		err = fmt.Errorf("it has records, but %s is of a version that wrote none", s.path())
	}
	if err != nil {
		return machine.Errorf(machine.FailedPrecondition,
			"%s is damaged and left as it is; restore it, or move it away to go on without the newest writes, with %s alone: %w",
			s.journalPath(), s.path(), err)
	}
	if j.doubtful >= 0 {
		s.log.Warn("the last record of the journal is not whole; it was being written when the daemon or the host stopped, and was never acknowledged",
			"record", j.sequence+1, "offset", j.doubtful)
	}
	if !s.backlog.empty() {
		s.log.Info("store found writes in its journal", "objects", len(s.backlog.objects), "bytes", s.backlog.bytes)
	}
	return nil
}

// readMeta reads the schema and the number of the last record that state.db has, and tells the journal its owner.
func (s *Store) readMeta(j *journal) (schema, applied uint64, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		if schema, err = readSchema(tx); err != nil || schema == 0 {
			return err
		}
		meta := tx.Bucket([]byte(metaBucket))
		if v := meta.Get([]byte(appliedKey)); len(v) == 8 {
			applied = binary.BigEndian.Uint64(v)
		}
		if j.owner, err = uuid.ParseBytes(meta.Get([]byte(idKey))); err != nil {
			return s.damaged(fmt.Errorf("identity: %w", err))
		}
		return nil
	})
	return schema, applied, err
}

// catchUp brings what the journal had into state.db. On a full disk that has to wait.
func (s *Store) catchUp() error {
	if s.backlog.empty() {
		return nil
	}
	if err := s.takeSpace(); err != nil {
		return err
	}
	s.startCheckpoint()
	_ = s.awaitCheckpoint() // its error is kept in health
	return nil
}
