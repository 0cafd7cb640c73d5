// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
)

// Space is taken ahead of need, in pieces of a growing size, and always more by a reserve than ordinary writes may
// use. The reserve holds the largest machine (a few MiB of Ignition) beside what a transaction copies.
const (
	defaultReserve = 4 << 20
	minGrowth      = 1 << 20
	maxGrowth      = 64 << 20
)

// journalPerReserve is the size of the journal in reserves. It holds the largest batch, and on a full disk the
// deletions that state.db takes only as others free pages of it.
const journalPerReserve = 2

// slack is what a transaction needs beside the values it writes: copies of the pages around them.
const slack = 64 << 10

// measure notes how much of state.db is used. Whoever wrote to it does so, as bbolt tells it to one goroutine alone.
func (s *Store) measure() error {
	var used int64
	if err := s.guard(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			used = tx.Size()
			return nil
		})
	}); err != nil {
		return err
	}
	stats := s.db.Stats()
	page := int64(s.db.Info().PageSize)
	s.space.Lock()
	defer s.space.Unlock()
	s.page, s.used = page, used-page*int64(stats.FreePageN+stats.PendingPageN)
	return nil
}

// haveRoom reports whether state.db can take what the journal holds and ordinary writes of so many bytes without
// touching the reserve, after trying to take more space if need be. Pages that are free inside of the file count, too.
func (s *Store) haveRoom(bytes int) bool {
	bytes += s.backlog.bytes
	if s.underWay != nil {
		bytes += s.underWay.backlog.bytes
	}
	s.space.Lock()
	missing := s.reserve + int64(2*bytes) + slack - (s.size - s.used)
	s.space.Unlock()
	return missing <= 0 || s.grow(missing) == nil
}

func (s *Store) allocated() int64 {
	s.space.Lock()
	defer s.space.Unlock()
	return s.size
}

// grow allocates more of the file, at least so many bytes.
func (s *Store) grow(bytes int64) error {
	s.space.Lock()
	defer s.space.Unlock()
	size := (s.size + max(s.growth(), bytes) + s.page - 1) / s.page * s.page
	if err := s.hooks.allocate(s.file, size); err != nil {
		return fmt.Errorf("allocate %d bytes for the store: %w", size, err)
	}
	s.size = size
	return nil
}

// growth is the size of the next piece. A small reserve, as tests have it, makes small pieces.
func (s *Store) growth() int64 {
	return min(max(minGrowth, s.size/8), maxGrowth, max(s.reserve, s.size/8))
}

// allocateByWriting makes a file at least size bytes long with blocks behind all that is new. What is below the old
// size stays as it is.
func allocateByWriting(f *os.File, size int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := writeZeros(f, info.Size(), size); err != nil {
		return restore(f, info.Size(), err)
	}
	return nil
}

// writeZeros writes zeros and syncs them.
func writeZeros(f *os.File, from, to int64) error {
	zeros := make([]byte, 256<<10)
	for at := from; at < to; {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), to-at)], at)
		if err != nil {
			return fmt.Errorf("write zeros: %w", err)
		}
		at += int64(n)
	}
	return f.Sync()
}

// restore cuts a file to the size it had before a failed allocation.
func restore(f *os.File, size int64, cause error) error {
	if err := f.Truncate(size); err != nil {
		return fmt.Errorf("%w (and truncate: %w)", cause, err)
	}
	return cause
}
