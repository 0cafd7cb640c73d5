// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate makes a file at least size bytes long with blocks behind all of it, holes included. What is new is also
// written: the first write to a block that is merely allocated makes the next sync wait for the journal.
func allocate(f *os.File, size int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	for {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case err == nil, errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		return allocateByWriting(f, size)
	}
	return restore(f, info.Size(), err)
}
