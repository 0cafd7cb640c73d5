// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package localdisk

import (
	"bytes"
	"context"
	"io"
	"os"
)

const (
	// copyChunk is how many bytes are copied between two looks at the context.
	copyChunk = 8 << 20
	bufferLen = 1 << 20
	// holeSize is the granularity at which zeros are left out, in bytes: the block size of the usual file systems.
	holeSize = 4 << 10
)

// readWrite copies a range through memory and leaves blocks of zeros out. dst must have a hole there.
func readWrite(ctx context.Context, dst, src *os.File, off, end int64) error {
	buf := make([]byte, min(bufferLen, end-off))
	for off < end {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := src.ReadAt(buf[:min(int64(len(buf)), end-off)], off)
		if n == 0 {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if err := writeSparse(dst, buf[:n], off); err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

// writeSparse writes the blocks that are not all zero, neighbours together.
func writeSparse(dst *os.File, p []byte, off int64) error {
	var zeros [holeSize]byte
	for len(p) > 0 {
		n := 0
		for n < len(p) {
			block := p[n:min(len(p), n+holeSize)]
			if bytes.Equal(block, zeros[:len(block)]) {
				break
			}
			n += len(block)
		}
		if n > 0 {
			if _, err := dst.WriteAt(p[:n], off); err != nil {
				return err
			}
		} else {
			n = min(len(p), holeSize)
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}
