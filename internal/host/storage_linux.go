// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const socketPathMax = 107 // sizeof(sun_path) less the terminating zero

func platformStatfs(s *Storage) error {
	var st unix.Statfs_t
	if err := unix.Statfs(s.Probed, &st); err != nil {
		return err
	}
	s.TotalBytes = st.Blocks * uint64(st.Bsize)
	s.FreeBytes = st.Bavail * uint64(st.Bsize)
	s.FreeFiles = st.Ffree
	s.Filesystem = filesystemName(st.Type)
	return nil
}

func filesystemName(magic int64) string {
	switch uint32(magic) {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	case unix.F2FS_SUPER_MAGIC:
		return "f2fs"
	case unix.FUSE_SUPER_MAGIC:
		return "fuse"
	case 0x2fc12fc1:
		return "zfs"
	case 0xca451a4e:
		return "bcachefs"
	default:
		return fmt.Sprintf("type %#x", uint32(magic))
	}
}

func platformClone(from, to *os.File) error {
	err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
		return errors.New("the file system cannot share blocks between files")
	}
	return err
}

func tryDirect(name string) error {
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EINVAL) {
		return errors.New("the file system does not know O_DIRECT")
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	const block = 4096
	buf := make([]byte, 2*block)
	// O_DIRECT wants memory aligned like the blocks of the device; a page always is enough.
	skip := int(-uintptr(unsafe.Pointer(&buf[0])) & (block - 1))
	if _, err := unix.Pwrite(fd, buf[skip:skip+block], 0); err != nil {
		return fmt.Errorf("write with O_DIRECT: %w", err)
	}
	return nil
}
