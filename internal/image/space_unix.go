// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package image

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// freeSpace returns the bytes an unprivileged writer may still use on the file system of dir.
func freeSpace(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("ask for free space of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}
