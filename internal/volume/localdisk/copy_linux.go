// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package localdisk

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// cloneFile makes dst share all blocks of src, where the file system can do that (XFS, btrfs, bcachefs, ...).
func cloneFile(dst, src *os.File) error { return unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) }

// copyImage copies the parts of src that hold data and leaves the rest of dst as holes. The kernel does the copying
// where it can.
func copyImage(ctx context.Context, dst, src *os.File, size int64) (string, error) {
	in := int(src.Fd())
	kernel := true
	for off := int64(0); off < size; {
		data, err := unix.Seek(in, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // nothing but a hole up to the end
		}
		if err != nil {
			data = off // the file system knows no holes
		}
		end := size
		if err == nil {
			if hole, err := unix.Seek(in, data, unix.SEEK_HOLE); err == nil {
				end = min(hole, size)
			}
		}
		if kernel {
			data, err = copyInKernel(ctx, dst, src, data, end)
			if kernel = !noKernelCopy(err); kernel && err != nil {
				return "", err
			}
		}
		if data < end {
			if err := readWrite(ctx, dst, src, data, end); err != nil {
				return "", err
			}
		}
		off = end
	}
	if err := dst.Truncate(size); err != nil {
		return "", err
	}
	if !kernel {
		return "read and write", nil
	}
	return "copy_file_range", nil
}

// copyInKernel copies a range with copy_file_range and returns how far it came.
func copyInKernel(ctx context.Context, dst, src *os.File, off, end int64) (int64, error) {
	for off < end {
		if err := ctx.Err(); err != nil {
			return off, err
		}
		from, to := off, off
		n, err := unix.CopyFileRange(int(src.Fd()), &from, int(dst.Fd()), &to, int(min(copyChunk, end-off)), 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return off, os.NewSyscallError("copy_file_range", err)
		case n == 0:
			return off, io.ErrUnexpectedEOF
		}
		off += int64(n)
	}
	return off, nil
}

// noKernelCopy tells a pair of file systems between which the kernel does not copy from a real failure.
func noKernelCopy(err error) bool {
	return errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) ||
		errors.Is(err, unix.EOPNOTSUPP)
}

// freeSpace returns the bytes an unprivileged writer may still use on the file system of dir.
func freeSpace(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, os.NewSyscallError("statfs", err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// allocated returns how many bytes of a file are no holes.
func allocated(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return min(st.Blocks*512, info.Size())
	}
	return info.Size()
}
