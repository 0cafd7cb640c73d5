// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Magic numbers of the compression formats a kernel or a module may come in.
var compressions = []struct {
	name   string
	magic  []byte
	expand func(ctx context.Context, in []byte) ([]byte, error)
}{
	{"gzip", []byte{0x1f, 0x8b}, expandGzip},
	{"xz", []byte{0xfd, '7', 'z', 'X', 'Z', 0}, expandBy("xz", "xz-utils")},
	{"zstd", []byte{0x28, 0xb5, 0x2f, 0xfd}, expandBy("zstd", "zstd")},
	{"lz4", []byte{0x02, 0x21, 0x4c, 0x18}, func(_ context.Context, in []byte) ([]byte, error) { return expandLZ4Legacy(in) }},
}

// expand decompresses by magic number; known is false when the data has none of them.
func expand(ctx context.Context, in []byte) (out []byte, known bool, err error) {
	for _, c := range compressions {
		if bytes.HasPrefix(in, c.magic) {
			out, err := c.expand(ctx, in)
			if err != nil {
				return nil, true, fmt.Errorf("decompress %s: %w", c.name, err)
			}
			return out, true, nil
		}
	}
	return nil, false, nil
}

// readMaybeCompressed reads a file and decompresses it where it is compressed.
func readMaybeCompressed(ctx context.Context, path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out, known, err := expand(ctx, raw)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if !known {
		return raw, nil
	}
	return out, nil
}

func expandGzip(_ context.Context, in []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(in))
	if err != nil {
		return nil, err
	}
	// A kernel payload has its size appended, which is no second gzip member.
	r.Multistream(false)
	return io.ReadAll(r)
}

// expandBy decompresses with a tool. What follows the compressed stream makes the tool complain after it has written
// everything, so complete output is judged by the caller, not by the exit status alone.
func expandBy(tool, debianPackage string) func(context.Context, []byte) ([]byte, error) {
	return func(ctx context.Context, in []byte) ([]byte, error) {
		cmd := exec.CommandContext(ctx, tool, "-dc")
		cmd.Stdin = bytes.NewReader(in)
		var out, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &stderr
		err := cmd.Run()
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%s is not on this host; run: apt-get install %s", tool, debianPackage)
		}
		if err != nil && out.Len() == 0 {
			return nil, fmt.Errorf("%s: %w: %s", tool, err, strings.TrimSpace(stderr.String()))
		}
		return out.Bytes(), nil
	}
}

const (
	lz4LegacyHeader = 4
	lz4LegacyBlock  = 8 << 20 // most a block of the legacy frame expands to
)

// expandLZ4Legacy decodes the LZ4 "legacy frame": a magic number, then blocks, each behind its compressed size. The
// kernel build appends the total size, four bytes that are no block.
func expandLZ4Legacy(in []byte) ([]byte, error) {
	in = in[lz4LegacyHeader:]
	var out []byte
	for len(in) > lz4LegacyHeader {
		size := int(binary.LittleEndian.Uint32(in))
		in = in[lz4LegacyHeader:]
		if size > len(in) {
			return nil, fmt.Errorf("block of %d bytes, %d left", size, len(in))
		}
		var err error
		if out, err = appendLZ4Block(out, in[:size]); err != nil {
			return nil, err
		}
		in = in[size:]
	}
	return out, nil
}

var errLZ4 = errors.New("damaged block")

// appendLZ4Block decodes one LZ4 block: sequences of a token, literals, and a match that copies earlier output.
func appendLZ4Block(out, in []byte) ([]byte, error) {
	start := len(out)
	for len(in) > 0 {
		token := in[0]
		in = in[1:]
		literals, rest, ok := lz4Length(int(token>>4), in)
		if !ok || literals > len(rest) || len(out)-start+literals > lz4LegacyBlock {
			return nil, errLZ4
		}
		out = append(out, rest[:literals]...)
		in = rest[literals:]
		if len(in) == 0 {
			return out, nil // the last sequence has no match
		}
		if len(in) < 2 {
			return nil, errLZ4
		}
		offset := int(binary.LittleEndian.Uint16(in))
		const minMatch = 4
		length, rest, ok := lz4Length(int(token&15), in[2:])
		length += minMatch
		if !ok || offset == 0 || offset > len(out)-start || len(out)-start+length > lz4LegacyBlock {
			return nil, errLZ4
		}
		in = rest
		// The match may overlap what it produces, then it repeats the last offset bytes.
		for from := len(out) - offset; length > 0; {
			n := min(length, len(out)-from)
			out = append(out, out[from:from+n]...)
			from += n
			length -= n
		}
	}
	return out, nil
}

// lz4Length reads the bytes that extend a 4-bit length.
func lz4Length(base int, in []byte) (length int, rest []byte, ok bool) {
	const more, full = 15, 255
	length = base
	if base < more {
		return length, in, true
	}
	for i, b := range in {
		length += int(b)
		if b != full {
			return length, in[i+1:], true
		}
	}
	return 0, nil, false
}
