// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package localdisk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

// extent is a run of bytes of one kind.
type extent struct {
	kind string // "data", "zeros" (written) or "hole"
	n    int
}

// writeExtents writes a file of extents and returns its content.
func writeExtents(f *os.File, extents []extent) ([]byte, error) {
	var all []byte
	for i, e := range extents {
		part := make([]byte, e.n)
		if e.kind == "data" {
			copy(part, noise(byte(i), e.n))
		}
		if e.kind != "hole" {
			if _, err := f.WriteAt(part, int64(len(all))); err != nil {
				return nil, err
			}
		}
		all = append(all, part...)
	}
	return all, f.Truncate(int64(len(all)))
}

func TestACopyHasTheSameBytesWhateverTheHoles(t *testing.T) {
	dir := t.TempDir()
	extents := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) extent {
		return extent{
			kind: rapid.SampledFrom([]string{"data", "zeros", "hole"}).Draw(rt, "kind"),
			n:    rapid.IntRange(1, 200_000).Draw(rt, "length"),
		}
	}), 0, 8)
	copies := map[string]func(dst, src *os.File, size int64) error{
		"of the platform": func(dst, src *os.File, size int64) error {
			_, err := copyImage(context.Background(), dst, src, size)
			return err
		},
		"through memory": func(dst, src *os.File, size int64) error {
			if err := readWrite(context.Background(), dst, src, 0, size); err != nil {
				return err
			}
			return dst.Truncate(size)
		},
	}
	rapid.Check(t, func(rt *rapid.T) {
		src, err := os.Create(filepath.Join(dir, "src"))
		if err != nil {
			rt.Fatal(err)
		}
		defer src.Close()
		want, err := writeExtents(src, extents.Draw(rt, "extents"))
		if err != nil {
			rt.Fatal(err)
		}
		for name, copyFile := range copies {
			dst, err := os.Create(filepath.Join(dir, "dst"))
			if err != nil {
				rt.Fatal(err)
			}
			err = copyFile(dst, src, int64(len(want)))
			dst.Close()
			if err != nil {
				rt.Fatalf("copy %s: %v", name, err)
			}
			if got, err := os.ReadFile(dst.Name()); err != nil || !bytes.Equal(got, want) {
				rt.Fatalf("copy %s differs (%d bytes, want %d): %v", name, len(got), len(want), err)
			}
		}
	})
}

func TestACopyKeepsHoles(t *testing.T) {
	dir := t.TempDir()
	src, dst := open(t, filepath.Join(dir, "src")), open(t, filepath.Join(dir, "dst"))
	if _, err := writeExtents(src, []extent{{"hole", 64 << 20}, {"data", 1 << 20}, {"hole", 64 << 20}}); err != nil {
		t.Fatal(err)
	}
	if _, err := copyImage(t.Context(), dst, src, 129<<20); err != nil {
		t.Fatal(err)
	}
	info, err := dst.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if n := allocated(info); n > 4<<20 && n != info.Size() {
		t.Errorf("copy takes %d bytes on disk", n)
	}
}

func TestACopyBetweenFileSystemsWorks(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "localdisk-test-")
	if err != nil {
		t.Skipf("no second file system to copy from: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(shm) })
	src, dst := open(t, filepath.Join(shm, "src")), open(t, filepath.Join(t.TempDir(), "dst"))
	want, err := writeExtents(src, []extent{{"data", 300_000}, {"hole", 300_000}, {"data", 12345}})
	if err != nil {
		t.Fatal(err)
	}
	method, err := copyImage(t.Context(), dst, src, int64(len(want)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(io.NewSectionReader(dst, 0, 1<<30))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("copy by %s differs: %v", method, err)
	}
}

func TestAStoppedCopyEnds(t *testing.T) {
	dir := t.TempDir()
	src, dst := open(t, filepath.Join(dir, "src")), open(t, filepath.Join(dir, "dst"))
	if _, err := writeExtents(src, []extent{{"data", 1 << 20}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := copyImage(ctx, dst, src, 1<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("copyImage = %v", err)
	}
}

// BenchmarkCopy compares the ways to make a disk of 512 MiB from a sparse image with 64 MiB of data, without flushing.
// The baseline is cp --sparse=always.
func BenchmarkCopy(b *testing.B) {
	dir := b.TempDir()
	src, err := os.Create(filepath.Join(dir, "src"))
	if err != nil {
		b.Fatal(err)
	}
	defer src.Close()
	var extents []extent
	for range 16 {
		extents = append(extents, extent{"data", 4 << 20}, extent{"hole", 28 << 20})
	}
	if _, err := writeExtents(src, extents); err != nil {
		b.Fatal(err)
	}
	if err := src.Sync(); err != nil {
		b.Fatal(err)
	}
	const size = 512 << 20
	to := filepath.Join(dir, "dst")
	measure := func(name string, copyOnce func() error) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				_ = os.Remove(to)
				if err := copyOnce(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	own := func(how func(dst *os.File) error) func() error {
		return func() error {
			dst, err := os.Create(to)
			if err != nil {
				return err
			}
			defer dst.Close()
			return how(dst)
		}
	}
	measure("platform", own(func(dst *os.File) error {
		_, err := copyImage(b.Context(), dst, src, size)
		return err
	}))
	measure("memory", own(func(dst *os.File) error {
		if err := readWrite(b.Context(), dst, src, 0, size); err != nil {
			return err
		}
		return dst.Truncate(size)
	}))
	measure("cp", func() error { return exec.Command("cp", "--reflink=never", "--sparse=always", src.Name(), to).Run() })
}
