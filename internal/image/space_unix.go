// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package image

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileSystem measures what an unprivileged writer may still use on the file system of dir.
func fileSystem(dir string) (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Space{}, fmt.Errorf("ask for free space of %s: %w", dir, err)
	}
	block := uint64(st.Bsize)
	return Space{Free: st.Bavail * block, Total: st.Blocks * block}, nil
}

// allocated is what a file takes of the disk, in bytes. Holes take nothing.
func allocated(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}
