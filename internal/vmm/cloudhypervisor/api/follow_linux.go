// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"os"

	"golang.org/x/sys/unix"
)

// openEventFile opens for writing too, which giving blocks back needs.
func openEventFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR, 0)
}

// reclaim gives back the blocks of the first length bytes. The file keeps its length and reads as zeros there,
// and whoever writes at its end goes on undisturbed.
func reclaim(f *os.File, length int64) error {
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	return unix.Fallocate(int(f.Fd()), mode, 0, length)
}
