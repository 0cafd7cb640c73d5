// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func (s *Store) path() string { return filepath.Join(s.dir, fileName) }

// load opens the file, brings it up to date and reads all of it into memory.
func (s *Store) load(ctx context.Context) error {
	info, err := os.Stat(s.path())
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err := s.makeFirst(); err != nil {
			return err
		}
	case err != nil:
		return machine.Wrap(kindOfIO(err), err, "open store")
	case !info.Mode().IsRegular():
		return machine.Errorf(machine.FailedPrecondition, "%s is not a regular file", s.path())
	}
	for _, step := range []func() error{s.inspect, s.open, s.openJournal, s.catchUp, s.migrate, s.takeSpace, s.read} {
		if err := ctx.Err(); err != nil {
			return machine.Wrap(machine.Unavailable, err, "open store")
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) boltOptions() *bolt.Options {
	return &bolt.Options{
		// The lock of the state root keeps other daemons out; this one is for tools that open the file itself.
		Timeout:        time.Second,
		NoFreelistSync: true,
		FreelistType:   bolt.FreelistMapType,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := s.hooks.openFile(name, flag, mode)
			if err == nil {
				s.file = f
			}
			return f, err
		},
	}
}

// makeFirst makes the journal, then state.db, so that a state.db of this schema always has one.
func (s *Store) makeFirst() error {
	if err := s.checkOrphan(); err != nil {
		return err
	}
	err := s.makeJournal()
	if err == nil {
		err = s.make()
	}
	return machine.Wrap(kindOfIO(err), err, "make store")
}

// make creates the file under another name, so that state.db is always complete.
func (s *Store) make() (err error) {
	path := s.path() + ".new"
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	db, err := bolt.Open(path, 0o600, s.boltOptions())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	err = db.Update(func(tx *bolt.Tx) error { return initialise(tx, s.hooks.schema) })
	if err == nil {
		err = s.hooks.allocate(s.file, s.reserve+s.growth())
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	return rename(path, s.path())
}

// inspect checks the structure of the file before bbolt sees it; see verifier.
func (s *Store) inspect() error {
	f, err := s.hooks.openFile(s.path(), os.O_RDONLY, 0)
	if err != nil {
		return machine.Wrap(kindOfIO(err), err, "open store")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return machine.Wrap(kindOfIO(err), err, "open store")
	}
	if err := verify(f, info.Size()); err != nil {
		return s.damaged(err)
	}
	return nil
}

func (s *Store) damaged(err error) error {
	return machine.Errorf(machine.FailedPrecondition,
		"%s is damaged as a whole and left as it is; restore it, or move it away to begin with nothing: %w", s.path(), err)
}

// open opens the file for writing, which does not write by itself, and refuses a schema it does not know.
func (s *Store) open() (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.db, err = nil, s.damaged(errors.Join(fmt.Errorf("%v", p), abandon(s.file)))
		}
	}()
	db, err := bolt.Open(s.path(), 0o600, s.boltOptions())
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return machine.Errorf(machine.Unavailable, "another process has opened %s", s.path())
	case err != nil:
		return machine.Wrap(kindOfIO(err), err, "open store")
	}
	db.AllocSize = 0 // the file grows here, not in bbolt; MaxSize is then exact
	s.db = db
	return s.db.View(func(tx *bolt.Tx) error {
		schema, err := readSchema(tx)
		if err != nil {
			return err
		}
		return s.checkSchema(schema)
	})
}

// takeSpace puts blocks behind all of the file and its reserve. A full disk is no reason to stay down.
func (s *Store) takeSpace() error {
	info, err := s.file.Stat()
	if err != nil {
		return machine.Wrap(kindOfIO(err), err, "open store")
	}
	s.size = info.Size()
	if err := s.measure(); err != nil {
		return err
	}
	var used int64
	if err := s.db.View(func(tx *bolt.Tx) error {
		used = tx.Size()
		return nil
	}); err != nil {
		return err
	}
	want := max(s.size, used+s.reserve+slack)
	if err := s.hooks.allocate(s.file, want); err != nil {
		s.log.Warn("store has no room to grow", "error", err)
		s.health.set(errFull())
		return nil
	}
	s.size = want
	return nil
}

// loaded is one object as it was found.
type loaded struct {
	key             []byte
	id              string
	desired, record []byte // nil if absent; of bbolt: valid during the transaction alone
	m               *machine.Machine
	damage          string
}

// read fills memory, and puts aside what cannot be read.
func (s *Store) read() error {
	var damaged []loaded
	err := s.db.View(func(tx *bolt.Tx) error {
		for _, name := range buckets() {
			if tx.Bucket([]byte(name)) == nil {
				return s.damaged(fmt.Errorf("no bucket %q", name))
			}
		}
		s.id = string(tx.Bucket([]byte(metaBucket)).Get([]byte(idKey)))
		if err := s.readQuarantine(tx); err != nil {
			return err
		}
		objects := s.backlog.overlay(pair(tx))
		s.identify(objects)
		if err := decodeAll(objects); err != nil {
			return err
		}
		machines := make([]*machine.Machine, 0, len(objects))
		for i := range objects {
			o := &objects[i]
			if o.damage == "" {
				machines = append(machines, o.m)
				continue
			}
			damaged = append(damaged, loaded{
				key: bytes.Clone(o.key), id: o.id, desired: bytes.Clone(o.desired), record: bytes.Clone(o.record), damage: o.damage,
			})
		}
		s.index.fill(machines)
		return nil
	})
	if err != nil {
		return machine.Wrap(kindOfIO(err), err, "read store")
	}
	s.putAside(damaged)
	return nil
}

// pair walks both buckets side by side.
func pair(tx *bolt.Tx) []loaded {
	var objects []loaded
	d, r := tx.Bucket([]byte(desiredBucket)).Cursor(), tx.Bucket([]byte(recordBucket)).Cursor()
	dk, dv := d.First()
	rk, rv := r.First()
	for dk != nil || rk != nil {
		order := bytes.Compare(dk, rk)
		switch {
		case rk == nil || dk != nil && order < 0:
			objects = append(objects, loaded{key: dk, desired: dv})
			dk, dv = d.Next()
		case dk == nil || order > 0:
			objects = append(objects, loaded{key: rk, record: rv})
			rk, rv = r.Next()
		default:
			objects = append(objects, loaded{key: dk, desired: dv, record: rv})
			dk, dv = d.Next()
			rk, rv = r.Next()
		}
	}
	return objects
}

// identify fills in ids, and gives the writer their sequence numbers.
func (s *Store) identify(objects []loaded) {
	for i := range objects {
		o := &objects[i]
		n, id, ok := parseKey(o.key)
		_, twice := s.sequences[id]
		o.id = id
		s.sequence = max(s.sequence, n)
		switch {
		case o.record == nil:
			o.damage = "desired half without record"
		case o.desired == nil:
			o.damage = "record half without desired"
		case !ok:
			o.damage = "key is cut off"
		case twice:
			o.damage = "stored twice"
		default:
			s.sequences[id] = n
		}
	}
}

// decodeAll decodes on all processors.
func decodeAll(objects []loaded) error {
	workers := runtime.GOMAXPROCS(0)
	size := (len(objects) + workers - 1) / workers
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		part := objects[min(w*size, len(objects)):min((w+1)*size, len(objects))]
		wg.Go(func() {
			debug.SetPanicOnFault(true)
			defer func() {
				if p := recover(); p != nil {
					errs[w] = fmt.Errorf("decode: %v", p)
				}
			}()
			for i := range part {
				part[i].decode()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (o *loaded) decode() {
	if o.damage != "" {
		return
	}
	o.m = &machine.Machine{ID: o.id}
	dv, err := decode(desiredBucket, o.id, o.desired, &o.m.Desired)
	if err != nil {
		o.damage = err.Error()
		return
	}
	rv, err := decode(recordBucket, o.id, o.record, &o.m.Record)
	if err != nil {
		o.damage = err.Error()
		return
	}
	o.m.Version = max(dv, rv)
}
