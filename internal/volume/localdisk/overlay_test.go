// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package localdisk

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

// overlays is a plugin on a file system that cannot clone.
func overlays(t *testing.T) *Plugin {
	t.Helper()
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("SKIPPED: qemu-img is not installed, overlays are not proven")
	}
	p, err := New(Options{Overlays: true, Limits: volume.Limits{TotalOps: 100}})
	if err != nil {
		t.Fatal(err)
	}
	p.clone = func(_, _ *os.File) error { return errors.ErrUnsupported }
	return p
}

// content is what a guest reads from an overlay.
func content(t *testing.T, path string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "raw")
	if text, err := exec.CommandContext(t.Context(), "qemu-img", "convert", "-f", "qcow2", "-O", "raw", path, out).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func overlay(t *testing.T, p *Plugin, req volume.Request) volume.Prepared {
	t.Helper()
	got, err := p.Prepare(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if got.Format != volume.FormatQcow2 || filepath.Base(got.Path) != overlayName || got.Limits.TotalOps != 100 {
		t.Fatalf("prepared %+v", got)
	}
	return got
}

func TestADiskIsAnOverlayWhereFilesCannotBeCloned(t *testing.T) {
	p, image := overlays(t), noise(1, 1<<20)
	req := request(t, 4<<20, image)
	got := overlay(t, p, req)
	if raw := content(t, got.Path); got.SizeBytes != 4<<20 || len(raw) != 4<<20 || !bytes.HasPrefix(raw, image) {
		t.Errorf("%d bytes, reported %d", len(raw), got.SizeBytes)
	}
	if info, err := os.Stat(got.Path); err != nil || info.Size() > 1<<20 || info.Mode().Perm() != fileMode {
		t.Errorf("the overlay itself: %v, %v", info, err)
	}
	// The cache may drop the image: the disk keeps its bytes.
	if err := os.Remove(req.Image.Path); err != nil {
		t.Fatal(err)
	}
	req.Image, req.Made = nil, true
	if again := overlay(t, p, req); again != got || !bytes.HasPrefix(content(t, got.Path), image) {
		t.Errorf("asked again: %+v", again)
	}
	if err := p.Delete(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(req.Dir); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
}

func TestAnOverlayGrowsAndNeverShrinks(t *testing.T) {
	p := overlays(t)
	req := request(t, 4<<20, noise(1, 1<<20))
	overlay(t, p, req)
	req.Made = true
	for _, step := range []struct{ want, got int64 }{{8 << 20, 8 << 20}, {2 << 20, 8 << 20}} {
		req.Volume.LocalDisk.SizeBytes = step.want
		if got := overlay(t, p, req); got.SizeBytes != step.got || len(content(t, got.Path)) != int(step.got) {
			t.Errorf("%d asked for: %d", step.want, got.SizeBytes)
		}
	}
}

func TestAnOverlayThatAVMMHasOpenIsLeftForItToGrow(t *testing.T) {
	p := overlays(t)
	req := request(t, 4<<20, noise(1, 1<<20))
	got := overlay(t, p, req)
	cmd := exec.CommandContext(t.Context(), "qemu-io", "-f", "qcow2", got.Path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("write 0 512\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1<<10)); err != nil { // it has the file open
		t.Fatal(err)
	}
	req.Made = true
	req.Volume.LocalDisk.SizeBytes = 8 << 20
	if again := overlay(t, p, req); again.SizeBytes != 4<<20 {
		t.Errorf("grown under its user: %d", again.SizeBytes)
	}
	_ = in.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if again := overlay(t, p, req); again.SizeBytes != 8<<20 {
		t.Errorf("after its user: %d", again.SizeBytes)
	}
}

func TestOnlyALockMeansThatAVMMHasAnOverlayOpen(t *testing.T) {
	p, err := New(Options{Overlays: true})
	if err != nil {
		t.Fatal(err)
	}
	tools := t.TempDir()
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	for text, held := range map[string]bool{
		`qemu-img: Failed to get "write" lock`:                               true,
		`qemu-img: Failed to get shared "write" lock`:                        true,
		"qemu-img: /blocks/disk.qcow2: Could not resize: No space left":      false,
		"qemu-img: Image locking is not possible, unlock the block device":   false,
		"qemu-img: Could not open '/machines/padlock/disk.qcow2': I/O error": false,
	} {
		script := "#!/bin/sh\ncat >&2 <<'END'\n" + text + "\nEND\nexit 1\n"
		if err := os.WriteFile(filepath.Join(tools, "qemu-img"), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		size, err := p.growOverlay(t.Context(), "disk.qcow2", 1<<20, 2<<20)
		if (err == nil) != held || held && size != 1<<20 {
			t.Errorf("%s: %d, %v", text, size, err)
		}
	}
}

func TestWithoutHardLinksTheImageIsCopied(t *testing.T) {
	p, image := overlays(t), noise(1, 1<<20)
	req := request(t, 0, image)
	elsewhere, err := os.MkdirTemp("/dev/shm", "image")
	if err != nil {
		t.Skipf("SKIPPED: no second file system: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(elsewhere) })
	req.Image.Path = filepath.Join(elsewhere, "image")
	if err := os.WriteFile(req.Image.Path, image, 0o640); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Prepare(t.Context(), req); err != nil || got.Format != "" || !begins(t, got.Path, image) {
		t.Errorf("prepared %+v, %v", got, err)
	}
}

func TestWhatAKilledCallLeftOfAnOverlayIsMadeAnew(t *testing.T) {
	p, image := overlays(t), noise(1, 1<<20)
	req := request(t, 0, image)
	if err := os.MkdirAll(req.Dir, 0o750); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{overlayTempName, baseName, tempName} {
		if err := os.WriteFile(filepath.Join(req.Dir, name), []byte("rubbish"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if got := overlay(t, p, req); !bytes.HasPrefix(content(t, got.Path), image) {
		t.Error("it does not begin as the image")
	}
	if left := files(t, req.Dir); left != baseName+" "+overlayName {
		t.Errorf("files: %s", left)
	}
}

func TestAnOverlayThatIsNoneIsRefused(t *testing.T) {
	p := overlays(t)
	req := request(t, 0, noise(1, 1<<20))
	got := overlay(t, p, req)
	if err := os.WriteFile(got.Path, bytes.Repeat([]byte("x"), 64), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Prepare(t.Context(), req); !machine.IsKind(err, machine.FailedPrecondition) || !strings.Contains(err.Error(), "no qcow2") {
		t.Errorf("%v", err)
	}
}
