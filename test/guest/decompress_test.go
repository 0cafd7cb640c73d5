// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// compressWith runs a compressor, or skips the test where it is absent.
func compressWith(t *testing.T, tool string, data []byte, args ...string) []byte {
	t.Helper()
	path, err := exec.LookPath(tool)
	if err != nil {
		t.Skipf("SKIPPED: %s is not on this host: its format was NOT tested", tool)
	}
	cmd := exec.Command(path, append(args, "-c")...)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return out
}

// kernelLike is data with literals, near and far matches and long runs.
func kernelLike(size int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	out := []byte("\x7fELF")
	for len(out) < size {
		switch r.IntN(3) {
		case 0:
			for range r.IntN(300) {
				out = append(out, byte(r.UintN(256)))
			}
		case 1:
			out = append(out, bytes.Repeat([]byte{byte(r.UintN(4))}, r.IntN(2000))...)
		default:
			from := r.IntN(len(out))
			out = append(out, out[from:min(len(out), from+r.IntN(5000))]...)
		}
	}
	return out[:size]
}

func TestLZ4LegacyFramesExpand(t *testing.T) {
	for name, size := range map[string]int{"small": 100, "one block": 1 << 20, "several blocks": 20 << 20} {
		t.Run(name, func(t *testing.T) {
			data := kernelLike(size)
			packed := compressWith(t, "lz4", data, "-l", "-1")
			got, err := expandLZ4Legacy(packed)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("expanded to %d bytes, %v; want %d", len(got), err, size)
			}
		})
	}
}

func TestDamagedLZ4NeverPanicsOrGrowsWithoutBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		block := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "block")
		out, err := appendLZ4Block(nil, block)
		if err == nil && len(out) > lz4LegacyBlock {
			t.Fatalf("%d bytes", len(out))
		}
	})
}

// bzImage wraps a payload in the fields of a setup header.
func bzImage(payload []byte) []byte {
	const setupSects, offset = 2, 100
	img := make([]byte, (setupSects+1)*sectorBytes+offset)
	img[setupSectsAt] = setupSects
	copy(img[headerMagicAt:], "HdrS")
	binary.LittleEndian.PutUint16(img[protocolAt:], 0x20f)
	binary.LittleEndian.PutUint32(img[payloadOffsetAt:], offset)
	binary.LittleEndian.PutUint32(img[payloadLengthAt:], uint32(len(payload)))
	return append(append(img, payload...), "what follows the payload"...)
}

func TestTheKernelIsTakenOutOfABzImage(t *testing.T) {
	kernel := kernelLike(3 << 20)
	size := binary.LittleEndian.AppendUint32(nil, uint32(len(kernel)))
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(kernel)
	_ = z.Close()
	check := func(t *testing.T, payload []byte) {
		t.Helper()
		got, err := vmlinuxFromBzImage(t.Context(), bzImage(payload))
		if err != nil || !bytes.Equal(got, kernel) {
			t.Errorf("got %d bytes, %v", len(got), err)
		}
	}
	t.Run("gzip", func(t *testing.T) { check(t, zipped.Bytes()) }) // its own trailer is the size
	t.Run("lz4", func(t *testing.T) { check(t, append(compressWith(t, "lz4", kernel, "-l"), size...)) })
	t.Run("zstd", func(t *testing.T) { check(t, append(compressWith(t, "zstd", kernel), size...)) })
	t.Run("xz", func(t *testing.T) { check(t, append(compressWith(t, "xz", kernel, "--check=crc32", "-1"), size...)) })
}

func TestABadKernelImageIsRefused(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte("no ELF here"))
	_ = z.Close()
	good := bzImage(zipped.Bytes())
	old := bytes.Clone(good)
	binary.LittleEndian.PutUint16(old[protocolAt:], 0x207)
	for name, c := range map[string]struct {
		image []byte
		want  string
	}{
		"an empty file":               {nil, "not a bzImage"},
		"another file":                {bytes.Repeat([]byte("x"), 4096), "not a bzImage"},
		"an old protocol":             {old, "boot protocol 0x207"},
		"a file cut short":            {good[:len(good)-60], "cut short"},
		"an unknown compression":      {bzImage([]byte("LZIPxxxxxxxx")), "unknown compression"},
		"a payload that is no kernel": {good, "no ELF file"},
		"a size that does not fit":    {bzImage(append(bytes.Clone(zipped.Bytes()), 1, 2, 3, 4)), "header says"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := vmlinuxFromBzImage(t.Context(), c.image)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}
