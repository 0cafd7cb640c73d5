// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package localdisk

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
)

// cloneFile reports that blocks cannot be shared; sharing is only used on Linux.
func cloneFile(_, _ *os.File) error { return errors.ErrUnsupported }

// copyImage copies src and leaves blocks of zeros as holes.
func copyImage(ctx context.Context, dst, src *os.File, size int64) (string, error) {
	if err := readWrite(ctx, dst, src, 0, size); err != nil {
		return "", err
	}
	return "read and write", dst.Truncate(size)
}

// freeSpace does not know; a full disk is noticed when it happens.
func freeSpace(string) (uint64, error) { return math.MaxUint64, nil }

func allocated(info fs.FileInfo) int64 { return info.Size() }
