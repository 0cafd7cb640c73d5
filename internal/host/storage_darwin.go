// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

const socketPathMax = 103 // sizeof(sun_path) less the terminating zero

func platformStatfs(s *Storage) error {
	var st unix.Statfs_t
	if err := unix.Statfs(s.Probed, &st); err != nil {
		return err
	}
	s.TotalBytes = st.Blocks * uint64(st.Bsize)
	s.FreeBytes = st.Bavail * uint64(st.Bsize)
	s.FreeFiles = st.Ffree
	s.Filesystem = unix.ByteSliceToString(st.Fstypename[:])
	return nil
}

// platformClone uses clonefile(2), which wants to make the target itself.
func platformClone(from, to *os.File) error {
	if err := os.Remove(to.Name()); err != nil {
		return err
	}
	err := unix.Clonefile(from.Name(), to.Name(), 0)
	if errors.Is(err, unix.ENOTSUP) {
		return errors.New("the file system cannot share blocks between files")
	}
	return err
}

func tryDirect(string) error { return errors.New("macOS has no O_DIRECT") }
