// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package store

import "os"

// allocate makes a file at least size bytes long with blocks behind all that is new.
func allocate(f *os.File, size int64) error { return allocateByWriting(f, size) }

// syncData makes what was written to a file durable.
func syncData(f *os.File) error { return f.Sync() }
