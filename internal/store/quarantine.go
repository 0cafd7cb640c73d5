// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Quarantined is a machine that could not be read and was put aside. Nobody may re-create its id, since processes
// and disks of it may exist.
type Quarantined struct {
	Key    string // id of the machine
	Reason string
	At     time.Time
}

// quarantine is what was put aside, in memory.
type quarantine struct {
	mu   sync.RWMutex
	list []Quarantined
}

func (q *quarantine) holds(id string) bool {
	q.mu.RLock()
	defer q.mu.RUnlock()
	return slices.ContainsFunc(q.list, func(x Quarantined) bool { return x.Key == id })
}

func (q *quarantine) add(x Quarantined) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = append(q.list, x)
}

// Quarantined returns what was put aside, now or earlier, sorted by key.
func (s *Store) Quarantined() []Quarantined {
	s.quarantine.mu.RLock()
	defer s.quarantine.mu.RUnlock()
	list := slices.Clone(s.quarantine.list)
	slices.SortStableFunc(list, func(a, b Quarantined) int { return strings.Compare(a.Key, b.Key) })
	return list
}

// quarantineEntry is the stored form. The halves are kept as they were found, byte for byte.
type quarantineEntry struct {
	Reason  string    `json:"reason"`
	At      time.Time `json:"at"`
	Key     string    `json:"key"` // base64, as a damaged key need not be text
	Desired []byte    `json:"desired,omitempty"`
	Record  []byte    `json:"record,omitempty"`
}

// putAside moves damaged objects to the quarantine bucket in one transaction. If that fails they stay where they
// are, are reported all the same, and the next opening tries again.
func (s *Store) putAside(damaged []loaded) {
	if len(damaged) == 0 {
		return
	}
	now := s.clock().UTC()
	for _, d := range damaged {
		s.log.Error("store object is damaged and quarantined", "machine", d.id, "reason", d.damage)
		s.quarantine.add(Quarantined{Key: d.id, Reason: d.damage, At: now})
	}
	if !s.backlog.empty() {
		s.log.Error("damaged store objects could not be moved to quarantine before the journal is in the database")
		return
	}
	err := s.transact(func(tx *bolt.Tx) error {
		for _, d := range damaged {
			if err := moveToQuarantine(tx, d, now); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.log.Error("damaged store objects could not be moved to quarantine", "error", err)
		s.health.set(err)
	}
}

func moveToQuarantine(tx *bolt.Tx, d loaded, now time.Time) error {
	bucket := tx.Bucket([]byte(quarantineBucket))
	key := d.id
	if bucket.Get([]byte(key)) != nil {
		key += "@" + now.Format(time.RFC3339Nano)
	}
	value, err := encode(quarantineBucket, key, 0, quarantineEntry{
		Reason: d.damage, At: now, Key: base64.StdEncoding.EncodeToString([]byte(d.id)),
		Desired: d.desired, Record: d.record,
	})
	if err != nil {
		return err
	}
	if err := bucket.Put([]byte(key), value); err != nil {
		return err
	}
	if err := tx.Bucket([]byte(desiredBucket)).Delete(d.key); err != nil {
		return err
	}
	return tx.Bucket([]byte(recordBucket)).Delete(d.key)
}

// readQuarantine loads what earlier openings put aside.
func (s *Store) readQuarantine(tx *bolt.Tx) error {
	return tx.Bucket([]byte(quarantineBucket)).ForEach(func(k, v []byte) error {
		s.quarantine.add(readEntry(string(k), v))
		return nil
	})
}

// readEntry reports what a quarantine entry holds, or that it is damaged itself.
func readEntry(key string, value []byte) Quarantined {
	var e quarantineEntry
	_, err := decode(quarantineBucket, key, value, &e)
	id, idErr := base64.StdEncoding.DecodeString(e.Key)
	if err := errors.Join(err, idErr); err != nil {
		return Quarantined{Key: key, Reason: "unreadable quarantine entry: " + err.Error()}
	}
	return Quarantined{Key: string(id), Reason: e.Reason, At: e.At}
}
