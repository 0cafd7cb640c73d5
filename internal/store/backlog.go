// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"maps"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// backlog is what the journal holds and state.db does not have yet.
type backlog struct {
	objects map[string]*unapplied // by key
	bytes   int                   // of all values
}

// unapplied is the last state of one object; a half that is nil stays as it is in state.db, or is removed there.
type unapplied struct {
	desired, record []byte
	removed         bool
}

func (u *unapplied) size() int { return len(u.desired) + len(u.record) }

func (l *backlog) empty() bool { return len(l.objects) == 0 }

func newBacklog() backlog { return backlog{objects: map[string]*unapplied{}} }

// add takes the newest change of an object. It keeps the value.
func (l *backlog) add(e entry) {
	u := l.objects[string(e.key)]
	if u == nil {
		u = &unapplied{}
		l.objects[string(e.key)] = u
	}
	l.bytes -= u.size()
	switch e.kind {
	case putDesired:
		u.desired = e.value
	case putRecord:
		u.record = e.value
	case removal:
		*u = unapplied{removed: true}
	}
	l.bytes += u.size()
}

// followedBy joins a newer backlog to an older one, which is used up.
func (l *backlog) followedBy(newer backlog) backlog {
	for key, u := range newer.objects {
		if u.removed {
			l.add(entry{kind: removal, key: []byte(key)})
		}
		if u.desired != nil {
			l.add(entry{putDesired, []byte(key), u.desired})
		}
		if u.record != nil {
			l.add(entry{putRecord, []byte(key), u.record})
		}
	}
	return *l
}

// keys returns all keys in the order of state.db, in pieces whose values have about so many bytes: what one
// transaction copies must fit into the reserve.
func (l *backlog) keys(limit int) [][]string {
	var parts [][]string
	size := limit
	for _, key := range slices.Sorted(maps.Keys(l.objects)) {
		if size >= limit {
			parts, size = append(parts, nil), 0
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], key)
		size += l.objects[key].size()
	}
	return parts
}

// writeTo puts the objects of some keys into state.db.
func (l *backlog) writeTo(tx *bolt.Tx, keys []string) error {
	desired, record := tx.Bucket([]byte(desiredBucket)), tx.Bucket([]byte(recordBucket))
	desired.FillPercent, record.FillPercent = fillPercent, fillPercent
	for _, key := range keys {
		u := l.objects[key]
		for _, half := range []struct {
			bucket *bolt.Bucket
			value  []byte
		}{{desired, u.desired}, {record, u.record}} {
			var err error
			if half.value != nil {
				err = half.bucket.Put([]byte(key), half.value)
			} else if u.removed {
				err = half.bucket.Delete([]byte(key))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// overlay gives objects that were read from state.db, in order of their keys, the state that they have here.
func (l *backlog) overlay(objects []loaded) []loaded {
	if l.empty() {
		return objects
	}
	index := make(map[string]int, len(objects))
	for i, o := range objects {
		index[string(o.key)] = i
	}
	for key, u := range l.objects {
		i, found := index[key]
		if !found {
			i = len(objects)
			objects = append(objects, loaded{key: []byte(key)})
		}
		o := &objects[i]
		if u.removed {
			o.desired, o.record = nil, nil
		}
		if u.desired != nil {
			o.desired = u.desired
		}
		if u.record != nil {
			o.record = u.record
		}
	}
	objects = slices.DeleteFunc(objects, func(o loaded) bool { return o.desired == nil && o.record == nil })
	slices.SortFunc(objects, func(a, b loaded) int { return bytes.Compare(a.key, b.key) })
	return objects
}
