// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// maxIDLength keeps keys far below what bbolt takes.
const maxIDLength = 256

// Create stores a new machine and returns it as stored; m itself is copied. It fails with a *DuplicateError (kind
// machine.AlreadyExists) when a machine of that id, or of that UIDLabel, is listed; with plain machine.AlreadyExists
// when the id is quarantined; machine.Exhausted when the disk is full; machine.Unavailable when the write failed or
// ctx ended first. In the last case the write may still happen.
func (s *Store) Create(ctx context.Context, m *machine.Machine) (*machine.Machine, error) {
	if m.ID == "" || len(m.ID) > maxIDLength {
		return nil, machine.InvalidField("id", "must have 1 to %d characters", maxIDLength)
	}
	n := m.Clone()
	n.Version = 1
	// Encoding is the larger part of the work; here it does not keep the writer from its next commit.
	desired, err := encode(desiredBucket, n.ID, n.Version, &n.Desired)
	if err != nil {
		return nil, err
	}
	record, err := encode(recordBucket, n.ID, n.Version, &n.Record)
	if err != nil {
		return nil, err
	}
	return s.do(ctx, func(b *batch, o *op) (*machine.Machine, error) {
		if old := b.current(o, n.ID); old != nil {
			return nil, &DuplicateError{Existing: old, reason: "same id"}
		}
		if b.store.quarantine.holds(n.ID) {
			return nil, machine.Errorf(machine.AlreadyExists, "machine %q is quarantined", n.ID)
		}
		if old := b.currentByUID(o, n); old != nil {
			return nil, &DuplicateError{Existing: old, reason: "same label " + UIDLabel}
		}
		b.put(o, n, desired, record)
		return n, nil
	})
}

// UpdateDesired changes what is wanted of a machine. fn gets a private copy; it runs once, on the writer's
// goroutine, so it must be quick, must not block and must not call the store. When fn returns ErrUnchanged or
// leaves an equal value nothing is written and the current machine is returned; any other error of fn is returned
// as it is. version, unless 0, must be that of the machine, else the error is machine.Conflict. The time of
// creation cannot change, nor can a time of deletion be unset (machine.Invalid). Other errors are those of Create
// and machine.NotFound.
func (s *Store) UpdateDesired(ctx context.Context, id string, version uint64, fn func(*machine.Desired) error) (*machine.Machine, error) {
	return s.do(ctx, func(b *batch, o *op) (*machine.Machine, error) {
		old := b.current(o, id)
		if old == nil {
			return nil, notFound(id)
		}
		if version != 0 && version != old.Version {
			return nil, machine.Errorf(machine.Conflict, "machine %q has version %d, not %d", id, old.Version, version)
		}
		n := *old
		n.Desired = old.Desired.Clone()
		if err := call(fn, &n.Desired); err != nil {
			return unchanged(old, err)
		}
		if reflect.DeepEqual(&old.Desired, &n.Desired) {
			return old, nil
		}
		// fn may have put in maps or slices that the caller goes on using.
		n.Desired = n.Desired.Clone()
		if err := checkDesired(&old.Desired, &n.Desired); err != nil {
			return nil, err
		}
		if uid(&n) != uid(old) {
			if other := b.currentByUID(o, &n); other != nil {
				return nil, &DuplicateError{Existing: other, reason: "same label " + UIDLabel}
			}
		}
		n.Version++
		data, same, err := encodeChange(desiredBucket, &n, &old.Desired, &n.Desired)
		if same || err != nil {
			return old, err
		}
		b.put(o, &n, data, nil)
		return &n, nil
	})
}

// UpdateRecord changes what was done about a machine; everything said of UpdateDesired holds, but there is no
// version to give: the reconciler is the only writer.
func (s *Store) UpdateRecord(ctx context.Context, id string, fn func(*machine.Record) error) (*machine.Machine, error) {
	return s.do(ctx, func(b *batch, o *op) (*machine.Machine, error) {
		old := b.current(o, id)
		if old == nil {
			return nil, notFound(id)
		}
		n := *old
		n.Record = old.Record.Clone()
		if err := call(fn, &n.Record); err != nil {
			return unchanged(old, err)
		}
		if reflect.DeepEqual(&old.Record, &n.Record) {
			return old, nil
		}
		n.Record = n.Record.Clone()
		n.Version++
		data, same, err := encodeChange(recordBucket, &n, &old.Record, &n.Record)
		if same || err != nil {
			return old, err
		}
		b.put(o, &n, nil, data)
		return &n, nil
	})
}

// Remove forgets a machine. It fails with machine.NotFound, or like Create when nothing could be written.
func (s *Store) Remove(ctx context.Context, id string) error {
	_, err := s.do(ctx, func(b *batch, o *op) (*machine.Machine, error) {
		if b.current(o, id) == nil {
			return nil, notFound(id)
		}
		b.remove(o, id)
		return nil, nil
	})
	return err
}

// WriteProbe makes a tiny durable write, to tell whether the store can write at all. The result shows in Healthy.
func (s *Store) WriteProbe(ctx context.Context) error {
	_, err := s.do(ctx, func(b *batch, o *op) (*machine.Machine, error) {
		b.probe(o)
		return nil, nil
	})
	return err
}

// call runs a function of a caller; a panic in it must not take the writer down.
func call[T any](fn func(*T) error, v *T) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("update function panicked: %v", p)
		}
	}()
	return fn(v)
}

func unchanged(old *machine.Machine, err error) (*machine.Machine, error) {
	if errors.Is(err, ErrUnchanged) {
		return old, nil
	}
	return nil, err
}

func checkDesired(before, after *machine.Desired) error {
	if !before.CreatedAt.Equal(after.CreatedAt) {
		return machine.InvalidField("createdAt", "cannot change")
	}
	if before.DeletedAt != nil && after.DeletedAt == nil {
		return machine.InvalidField("deletedAt", "cannot be unset")
	}
	return nil
}

// encodeChange encodes the new value of one half, and reports whether the old one would read the same on disk.
func encodeChange(bucket string, m *machine.Machine, before, after any) (data []byte, same bool, err error) {
	if data, err = encode(bucket, m.ID, m.Version, after); err != nil {
		return nil, false, err
	}
	old, err := encode(bucket, m.ID, m.Version, before)
	return data, err == nil && bytes.Equal(old, data), err
}
