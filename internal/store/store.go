// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// UIDLabel names the label by which the machinepoollet tells machines apart. At most one listed machine carries
// each non-empty value, since the machinepoollet stops working for a machine that it finds twice.
const UIDLabel = "machinepoollet.ironcore.dev/machine-uid"

// Names of files below the state root.
const (
	fileName    = "state.db"
	journalName = "state.journal"
	lockName    = "lock"
)

// ErrUnchanged is returned by an update function that wants nothing written.
var ErrUnchanged = errors.New("unchanged")

// DuplicateError says that Create found the machine in place already; its kind is machine.AlreadyExists.
type DuplicateError struct {
	Existing *machine.Machine // shared snapshot
	reason   string
}

// Error names the machine that exists and by what it was found.
func (e *DuplicateError) Error() string {
	return fmt.Sprintf("machine %s exists already: %s", e.Existing.ID, e.reason)
}

// Unwrap gives the error its kind.
func (e *DuplicateError) Unwrap() error {
	return &machine.Error{Kind: machine.AlreadyExists, Message: e.reason}
}

// Options configure a store.
type Options struct {
	Dir    string           // state root; made with mode 0750 if absent; state.db, state.journal and lock live there
	Logger *slog.Logger     // default: discard
	Clock  func() time.Time // default: time.Now

	hooks hooks // of tests
}

// hooks replace, in tests, what cannot be provoked from outside.
type hooks struct {
	commit     func(*bolt.Tx) error                             // instead of tx.Commit
	sync       func(*os.File) error                             // instead of syncData, for the journal
	allocate   func(f *os.File, size int64) error               // instead of allocate
	openFile   func(string, int, os.FileMode) (*os.File, error) // instead of os.OpenFile, for state.db
	schema     uint64                                           // 0: currentSchema
	migrations map[uint64]migration                             // nil: those of this build
	reserve    int64                                            // bytes; 0: defaultReserve

	checkpointAfter time.Duration // 0: defaultCheckpointAfter
}

// Store is an open state root. Its methods may be called from any goroutine.
type Store struct {
	dir   string
	log   *slog.Logger
	clock func() time.Time
	hooks hooks
	id    string
	lock  *os.File

	db      *bolt.DB // written by one checkpoint at a time
	file    *os.File // that of db, to allocate ahead
	journal *journal // of the writer goroutine
	index   *index

	submit sync.RWMutex // held for reading while sending to ops
	closed bool         // guarded by submit
	ops    chan *op
	done   chan struct{} // closed when the writer has ended

	// Of the writer goroutine.
	sequences map[string]uint64 // of ids; see makeKey
	sequence  uint64            // the highest one
	expected  int               // writes that a gathering may hope for
	backlog   backlog
	underWay  *checkpoint
	applied   chan error       // result of underWay
	due       <-chan time.Time // when to begin a checkpoint; nil while there is nothing to do

	reserve int64
	space   sync.Mutex
	size    int64 // allocated bytes of file; guarded by space
	used    int64 // bytes of it that are not free; guarded by space
	page    int64 // bytes; guarded by space

	quarantine quarantine
	health     health
}

// Open opens the state root, and makes it at first use. It fails with machine.Unavailable when another daemon uses
// the root, machine.Exhausted when a new root does not fit on the disk, and machine.FailedPrecondition when the
// file is damaged as a whole or of a newer schema; the file is then untouched. Damaged machines do not make it
// fail: see Quarantined. The context bounds the opening alone.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Dir == "" {
		return nil, machine.InvalidField("dir", "must not be empty")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	s := &Store{
		dir: o.Dir, log: o.Logger, clock: o.Clock, hooks: o.hooks.withDefaults(),
		backlog: newBacklog(), applied: make(chan error, 1), index: newIndex(),
		sequences: map[string]uint64{}, ops: make(chan *op, maxBatch), done: make(chan struct{}),
	}
	s.reserve = s.hooks.reserve
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return nil, machine.Wrap(kindOfIO(err), err, "make state root")
	}
	lock, err := acquireLock(o.Dir)
	if err != nil {
		return nil, err
	}
	s.lock = lock
	if err := s.load(ctx); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	go s.write()
	return s, nil
}

func (h hooks) withDefaults() hooks {
	if h.commit == nil {
		h.commit = (*bolt.Tx).Commit
	}
	if h.allocate == nil {
		h.allocate = allocate
	}
	if h.sync == nil {
		h.sync = syncData
	}
	if h.checkpointAfter == 0 {
		h.checkpointAfter = defaultCheckpointAfter
	}
	if h.openFile == nil {
		h.openFile = os.OpenFile
	}
	if h.schema == 0 {
		h.schema = currentSchema
	}
	if h.migrations == nil {
		h.migrations = migrations()
	}
	if h.reserve == 0 {
		h.reserve = defaultReserve
	}
	return h
}

// Close finishes the writes under way, brings the journal into state.db, ends all watches and releases the state root.
// Closing twice is fine.
func (s *Store) Close() error {
	s.submit.Lock()
	if s.closed {
		s.submit.Unlock()
		<-s.done
		return nil
	}
	s.closed = true
	close(s.ops)
	s.submit.Unlock()
	<-s.done
	s.index.close()
	return s.closeFiles()
}

// closeFiles closes database and lock, in that order.
func (s *Store) closeFiles() error {
	var err error
	switch {
	case s.db == nil: // never opened
	case s.health.isBroken() != nil:
		// bbolt may have died with its locks held; closing it could wait for ever.
		err = abandon(s.file)
	default:
		err = s.db.Close()
	}
	s.db = nil
	if s.journal != nil {
		err = errors.Join(err, s.journal.file.Close())
		s.journal = nil
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
		s.lock = nil
	}
	return machine.Wrap(machine.Unavailable, err, "close state root")
}

// ID returns the random identity of this state root, made when it was first opened. Processes started on its
// behalf carry it, so that two roots on one host never take each other's.
func (s *Store) ID() string { return s.id }

// Get returns a machine from memory. The value is a shared snapshot. It fails with machine.NotFound.
func (s *Store) Get(id string) (*machine.Machine, error) {
	if m := s.index.get(id); m != nil {
		return m, nil
	}
	return nil, notFound(id)
}

// List returns all machines from memory, sorted by time of creation, then id, in constant time. Slice and values
// are shared snapshots.
func (s *Store) List() []*machine.Machine { return s.index.all() }

func notFound(id string) error {
	return machine.Errorf(machine.NotFound, "machine %q does not exist", id)
}
