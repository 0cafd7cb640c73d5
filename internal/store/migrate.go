// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// currentSchema is the layout that this build reads and writes.
const currentSchema = 2

// journalSchema is the first one that has a journal. It has the layout of the one before; the number keeps versions out
// that know nothing of the journal.
const journalSchema = 2

// Keys of the meta bucket.
const (
	schemaKey  = "schema"
	idKey      = "id"
	appliedKey = "applied" // number of the last record of the journal that the file has
)

// migration brings a file from one schema to the next. It runs in the transaction of all migrations, so it either
// takes effect as a whole or not at all.
type migration func(*bolt.Tx) error

// migrations of this build, by the schema they start from.
func migrations() map[uint64]migration {
	return map[uint64]migration{
		journalSchema - 1: func(*bolt.Tx) error { return nil },
	}
}

// readSchema returns the schema of a file; one without a number is of schema 0.
func readSchema(tx *bolt.Tx) (uint64, error) {
	meta := tx.Bucket([]byte(metaBucket))
	if meta == nil {
		return 0, nil
	}
	value := meta.Get([]byte(schemaKey))
	switch len(value) {
	case 0:
		return 0, nil
	case 8:
		return binary.BigEndian.Uint64(value), nil
	}
	return 0, machine.Errorf(machine.FailedPrecondition, "%s is damaged: schema version has %d bytes", tx.DB().Path(), len(value))
}

// checkSchema refuses what this build cannot read or bring up to date.
func (s *Store) checkSchema(schema uint64) error {
	if schema > s.hooks.schema {
		return machine.Errorf(machine.FailedPrecondition,
			"%s has schema %d, written by a newer version; this one knows up to %d and leaves it as it is",
			s.path(), schema, s.hooks.schema)
	}
	for v := schema; v < s.hooks.schema; v++ {
		if s.hooks.migrations[v] == nil {
			return machine.Errorf(machine.FailedPrecondition,
				"%s has schema %d, from which this version knows no way to %d; it is left as it is",
				s.path(), schema, s.hooks.schema)
		}
	}
	return nil
}

// migrate brings an older file up to date, after copying it to state.db.v<old>.bak.
func (s *Store) migrate() error {
	var schema uint64
	err := s.db.View(func(tx *bolt.Tx) (err error) {
		schema, err = readSchema(tx)
		return err
	})
	if err != nil || schema == s.hooks.schema {
		return err
	}
	if !s.backlog.empty() {
		return machine.Errorf(machine.Unavailable, "migrate store: its journal cannot be brought into %s", s.path())
	}
	backup := fmt.Sprintf("%s.v%d.bak", s.path(), schema)
	if err := s.backUp(backup); err != nil {
		return machine.Wrap(kindOfIO(err), err, "copy store before migration")
	}
	s.log.Info("migrating store", "from", schema, "to", s.hooks.schema, "copy", backup)
	err = s.db.Update(func(tx *bolt.Tx) error {
		for v := schema; v < s.hooks.schema; v++ {
			if err := s.hooks.migrations[v](tx); err != nil {
				return fmt.Errorf("from schema %d: %w", v, err)
			}
		}
		return initialise(tx, s.hooks.schema)
	})
	return machine.Wrap(kindOfIO(err), err, "migrate store")
}

// backUp writes a consistent copy of the file, and syncs it, before it gets its name.
func (s *Store) backUp(path string) (err error) {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			err = errors.Join(err, os.Remove(path+".new"))
		}
	}()
	err = s.db.View(func(tx *bolt.Tx) error {
		_, err := tx.WriteTo(io.Writer(f))
		return err
	})
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return rename(path+".new", path)
}

// initialise makes sure of all buckets, the schema number and the identity.
func initialise(tx *bolt.Tx, schema uint64) error {
	for _, name := range buckets() {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	meta := tx.Bucket([]byte(metaBucket))
	if err := meta.Put([]byte(schemaKey), binary.BigEndian.AppendUint64(nil, schema)); err != nil {
		return err
	}
	if meta.Get([]byte(idKey)) != nil {
		return nil
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return err
	}
	return meta.Put([]byte(idKey), []byte(id.String()))
}

// rename gives a synced file its final name, durably.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
