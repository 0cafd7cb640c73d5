// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package store keeps machines: durably in one bbolt file, and whole in memory, so that reading never waits for a
// disk. It exists so that what was acknowledged survives a crash, a full disk and a damaged object, and so that the
// writer of what is wanted (request handlers) and the writer of what was done (the reconciler) never lose each
// other's changes.
//
// A write is acknowledged once it is committed and synced; only then, and in the same order, do readers and watches
// see it. One goroutine writes; whatever waits for it shares one transaction. Values handed out are shared
// snapshots that must never be written to.
//
// # Full disk
//
// The file is allocated ahead: it always ends in a reserve that ordinary writes may not use. When the disk is full
// they fail with machine.Exhausted and change nothing, while a deletion can still be recorded out of the reserve:
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
