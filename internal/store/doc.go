// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package store keeps machines: durably in a journal and one bbolt file, and whole in memory, so that reading never
// waits for a disk. It exists so that what was acknowledged survives a crash, a full disk and a damaged object, and so
// that the writer of what is wanted (request handlers) and the writer of what was done (the reconciler) never lose each
// other's changes.
//
// A write is acknowledged once it is synced to the journal; only then, and in the same order, do readers and watches
// see it. One goroutine writes; whatever waits for it shares one record. Values handed out are shared snapshots that
// must never be written to.
//
// # Journal
//
// state.journal is a ring of records in blocks of 4 KiB that were written once when it was made, so that a record
// costs one write and one sync of data alone. A record has a magic number, a format version, the identity of the store,
// a sequence number, a table of what it changes, the encoded halves, and a CRC-32C of each part. A second after a
// write, or when half of the journal has been written, a checkpoint brings everything into state.db in the
// background; its last transaction notes up to which number state.db has it all, and only then may the ring write
// over those records. Opening replays the records with higher numbers, wherever they lie: numbers only rise, so an
// old record never comes back. Closing makes a checkpoint, so that state.db alone is complete.
//
// The last record may be torn: it was never acknowledged and is cut. A sync that failed proves nothing about what it
// was to sync, so its record is written over, never synced again. Any other record that cannot be read, or is missing,
// is damage: the journal is refused and left as it is. If only a value in it is damaged, the machine that it belongs
// to goes to quarantine. A journal of another store or time is refused, too.
//
// # Full disk
//
// Both files are allocated ahead; state.db always ends in a reserve that ordinary writes may not use. When the disk is
// full they fail with machine.Exhausted and change nothing, while a deletion can still be recorded out of the reserve:
// Remove, UpdateDesired of a machine that is (or thereby becomes) marked as deleted, and UpdateRecord of such a
// machine. Each ordinary write tries to get the reserve back, so the store recovers by itself. The promise needs a
// file system that overwrites in place (ext4, xfs, tmpfs); on one that copies on write it is only likely.
//
// # Damage
//
// Each half of a machine is stored under its own key with a format version and a checksum. A half that cannot be
// read, or lacks its counterpart, is moved to a quarantine bucket, reported by Quarantined, and never deleted. A
// file that is damaged in its structure is refused and left as it is.
//
// The package must never guess the content of something it cannot read, acknowledge what is not synced, or know
// what a machine means.
package store
