// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate makes a file at least size bytes long with blocks behind all of it, holes included.
func allocate(f *os.File, size int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	for {
		err = unix.Fallocate(int(f.Fd()), 0, 0, size)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case err == nil:
		return f.Sync()
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		return allocateByWriting(f, size)
	}
	return restore(f, info.Size(), err)
}

// syncData makes what was written to a file durable. As the blocks of the journal exist, there is nothing but data.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
