// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package localdisk

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const machineID = "0d8e6a0e-4f0a-4f57-9d6c-0f0b6f3f3a11"

func newPlugin(t *testing.T) *Plugin {
	t.Helper()
	p, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// request asks for a disk of the given size, beginning as image if that is not nil.
func request(t *testing.T, size int64, image []byte) volume.Request {
	t.Helper()
	root := t.TempDir()
	req := volume.Request{
		MachineID: machineID, Dir: filepath.Join(root, "machines", machineID, "volumes", "root"),
		Volume: machine.Volume{Name: "root", Device: "oda", LocalDisk: &machine.LocalDisk{SizeBytes: size}},
	}
	if image != nil {
		ref, path := "registry/os:v1", filepath.Join(root, "image")
		if err := os.WriteFile(path, image, 0o640); err != nil {
			t.Fatal(err)
		}
		req.Volume.LocalDisk.Image = &ref
		req.Image = &volume.BootImage{Path: path, SizeBytes: int64(len(image))}
	}
	return req
}

func mustPrepare(t *testing.T, p *Plugin, req volume.Request) volume.Prepared {
	t.Helper()
	got, err := p.Prepare(t.Context(), req)
	if err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	info, err := os.Stat(got.Path)
	if err != nil || info.Size() != got.SizeBytes {
		t.Fatalf("disk: %v, %v; reported %d bytes", info, err, got.SizeBytes)
	}
	return got
}

func begins(t *testing.T, path string, want []byte) bool {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.HasPrefix(data, want)
}

func files(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestADiskHasTheLargerOfRequestedAndImageSize(t *testing.T) {
	image := noise(1, 1<<20)
	tests := []struct {
		name  string
		size  int64
		image []byte
		want  int64
	}{
		{"an empty disk without size has 500 MiB", 0, nil, 500 << 20},
		{"an empty disk has the size asked for", 3 << 20, nil, 3 << 20},
		{"a size is rounded up to whole sectors", 1000, nil, 1024},
		{"a disk without size is as large as its image", 0, image, 1 << 20},
		{"a disk is not cut below its image", 4096, image, 1 << 20},
		{"a disk may be larger than its image", 5 << 20, image, 5 << 20},
		{"an image is rounded up to whole sectors", 0, image[:1000], 1024},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := request(t, tt.size, tt.image)
			got := mustPrepare(t, newPlugin(t), req)
			want := volume.Prepared{
				Handle: "cloud-hypervisor-provider.ironcore.dev/local-disk/root", Path: filepath.Join(req.Dir, "disk.raw"),
				Serial: machine.Serial(machineID, "root", "oda"), SizeBytes: tt.want,
			}
			if got != want {
				t.Errorf("prepared %+v, want %+v", got, want)
			}
			if len(got.Serial) > 20 || !strings.HasPrefix(got.Serial, "oda-") {
				t.Errorf("serial is %q", got.Serial)
			}
			if !begins(t, got.Path, tt.image) {
				t.Error("disk does not begin as the image")
			}
			if f := files(t, req.Dir); f != diskName {
				t.Errorf("directory holds %q", f)
			}
			if info, err := os.Stat(got.Path); err != nil || info.Mode().Perm()&0o007 != 0 {
				t.Errorf("mode is %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestADiskWithDataIsNeverMadeAgain(t *testing.T) {
	p := newPlugin(t)
	req := request(t, 1<<20, noise(1, 1<<20))
	path := mustPrepare(t, p, req).Path
	written := noise(2, 1<<20)
	if err := os.WriteFile(path, written, 0o640); err != nil {
		t.Fatal(err)
	}
	unchanged := func(when string, size int64) {
		t.Helper()
		if got := mustPrepare(t, p, req); got.SizeBytes != size || !begins(t, got.Path, written) {
			t.Errorf("%s: %d bytes, want %d beginning with the guest's data", when, got.SizeBytes, size)
		}
	}
	unchanged("asked again", 1<<20)
	if err := os.WriteFile(req.Image.Path, noise(3, 2<<20), 0o640); err != nil {
		t.Fatal(err)
	}
	req.Image.SizeBytes = 2 << 20
	unchanged("with another image", 1<<20)
	req.Image = nil
	unchanged("without its image", 1<<20)
	if err := os.WriteFile(filepath.Join(req.Dir, tempName), []byte("torn"), 0o640); err != nil {
		t.Fatal(err)
	}
	unchanged("with a temporary file beside it", 1<<20)
	req.Volume.LocalDisk.SizeBytes = 3 << 20
	unchanged("with a larger size", 3<<20)
	req.Volume.LocalDisk.SizeBytes = 4096
	unchanged("with a smaller size", 3<<20)
}

func TestADiskThatWasThereAndIsMissingIsNotMadeAnew(t *testing.T) {
	p := newPlugin(t)
	req := request(t, 1<<20, noise(1, 1<<20))
	path := mustPrepare(t, p, req).Path
	req.Made = true
	mustPrepare(t, p, req)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Prepare(t.Context(), req); !machine.IsKind(err, machine.FailedPrecondition) {
		t.Errorf("prepare: %v", err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Error("a new disk stands in its place")
	}
}

func TestWhatAKilledCallLeftIsMadeAnew(t *testing.T) {
	req := request(t, 0, noise(1, 1<<20))
	if err := os.MkdirAll(req.Dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(req.Dir, tempName), bytes.Repeat([]byte{9}, 3<<20), 0o640); err != nil {
		t.Fatal(err)
	}
	got := mustPrepare(t, newPlugin(t), req)
	if got.SizeBytes != 1<<20 || !begins(t, got.Path, noise(1, 1<<20)) || files(t, req.Dir) != diskName {
		t.Errorf("%+v, directory %q", got, files(t, req.Dir))
	}
}

func TestAFailedCopyLeavesNothingAndSaysWhy(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	failing := func(err error) func(context.Context, *os.File, *os.File, int64) (string, error) {
		return func(_ context.Context, dst, _ *os.File, _ int64) (string, error) {
			_, _ = dst.WriteString("half")
			return "", err
		}
	}
	tests := []struct {
		name  string
		ctx   context.Context
		setup func(p *Plugin, req *volume.Request)
		want  machine.Kind
	}{
		{name: "no space during the copy", want: machine.Exhausted, setup: func(p *Plugin, _ *volume.Request) {
			p.copy = failing(&os.PathError{Op: "write", Err: syscall.ENOSPC})
		}},
		{name: "no space before the copy", want: machine.Exhausted, setup: func(p *Plugin, _ *volume.Request) {
			p.freeSpace = func(string) (uint64, error) { return spaceReserve + 1000, nil }
		}},
		{name: "an input-output error", want: machine.Unavailable, setup: func(p *Plugin, _ *volume.Request) {
			p.copy = failing(syscall.EIO)
		}},
		{name: "a stop in the middle", want: machine.Unavailable, ctx: cancelled},
		{name: "an image that is gone", want: machine.FailedPrecondition, setup: func(_ *Plugin, req *volume.Request) {
			_ = os.Remove(req.Image.Path)
		}},
		{name: "an image that was not resolved", want: machine.FailedPrecondition, setup: func(_ *Plugin, req *volume.Request) {
			req.Image = nil
		}},
		{name: "an image that was shortened", want: machine.FailedPrecondition, setup: func(_ *Plugin, req *volume.Request) {
			_ = os.Truncate(req.Image.Path, 1000)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, req := newPlugin(t), request(t, 0, noise(1, 1<<20))
			if src, dst := open(t, req.Image.Path), open(t, filepath.Join(t.TempDir(), "probe")); cloneFile(dst, src) == nil && tt.want != machine.FailedPrecondition {
				t.Skip("the file system of TMPDIR shares blocks, so nothing is copied; run with TMPDIR on ext4 or tmpfs")
			}
			if tt.setup != nil {
				tt.setup(p, &req)
			}
			ctx := tt.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			_, err := p.Prepare(ctx, req)
			if machine.KindOf(err) != tt.want {
				t.Errorf("kind %v, %v; want %v", machine.KindOf(err), err, tt.want)
			}
			if f := files(t, req.Dir); f != "" {
				t.Errorf("directory holds %q", f)
			}
		})
	}
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestWhatIsNoDiskIsLeftAlone(t *testing.T) {
	req := request(t, 1<<20, nil)
	target := filepath.Join(t.TempDir(), "precious")
	if err := errors.Join(os.MkdirAll(req.Dir, 0o750), os.WriteFile(target, []byte("data"), 0o600),
		os.Symlink(target, filepath.Join(req.Dir, diskName))); err != nil {
		t.Fatal(err)
	}
	if _, err := newPlugin(t).Prepare(t.Context(), req); machine.KindOf(err) != machine.FailedPrecondition {
		t.Errorf("Prepare = %v", err)
	}
	if !begins(t, target, []byte("data")) {
		t.Error("target of the link was changed")
	}
}

func TestDeleteIsIdempotentAndStaysInItsDirectory(t *testing.T) {
	p := newPlugin(t)
	req := request(t, 1<<20, nil)
	other := req
	other.Volume.Name, other.Dir = "data", filepath.Join(filepath.Dir(req.Dir), "data")
	if err := p.Delete(t.Context(), req); err != nil {
		t.Errorf("Delete of nothing: %v", err)
	}
	mustPrepare(t, p, req)
	kept := mustPrepare(t, p, other)
	for range 2 {
		if err := p.Delete(t.Context(), req); err != nil {
			t.Errorf("Delete: %v", err)
		}
		if _, err := os.Stat(req.Dir); !os.IsNotExist(err) {
			t.Errorf("directory is still there: %v", err)
		}
	}
	if _, err := os.Stat(kept.Path); err != nil {
		t.Errorf("other volume: %v", err)
	}

	mustPrepare(t, p, req)
	foreign := filepath.Join(req.Dir, "foreign")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Delete(t.Context(), req); machine.KindOf(err) != machine.FailedPrecondition {
		t.Errorf("Delete with a foreign file = %v", err)
	}
	if f := files(t, req.Dir); f != "foreign" {
		t.Errorf("directory holds %q", f)
	}
}

func TestADiskIsDeletedThoughNobodyKnowsItsSizeAnyMore(t *testing.T) {
	p, req := newPlugin(t), request(t, 1<<20, nil)
	mustPrepare(t, p, req)
	req.Volume = machine.Volume{Name: req.Volume.Name} // it is in the record alone, no longer wanted
	if err := p.Delete(t.Context(), req); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(req.Dir); !os.IsNotExist(err) {
		t.Errorf("directory is still there: %v", err)
	}
}

func TestRequestsThatNameAnotherPlaceAreRefused(t *testing.T) {
	p := newPlugin(t)
	for name, change := range map[string]func(*volume.Request){
		"a directory of another machine": func(r *volume.Request) { r.Dir = strings.Replace(r.Dir, machineID, "other", 1) },
		"a directory of another volume":  func(r *volume.Request) { r.Dir = filepath.Join(filepath.Dir(r.Dir), "data") },
		"a relative directory":           func(r *volume.Request) { r.Dir = filepath.Join(machineID, "volumes", "root") },
		"no machine":                     func(r *volume.Request) { r.MachineID = "" },
		"a machine that climbs":          func(r *volume.Request) { r.MachineID = ".." },
		"a name that climbs":             func(r *volume.Request) { r.Volume.Name = "../../x" },
		"a negative size":                func(r *volume.Request) { r.Volume.LocalDisk.SizeBytes = -1 },
		"an absurd size":                 func(r *volume.Request) { r.Volume.LocalDisk.SizeBytes = MaxSize + 1 },
		"no local disk":                  func(r *volume.Request) { r.Volume.LocalDisk = nil },
	} {
		t.Run(name, func(t *testing.T) {
			req := request(t, 1<<20, nil)
			disk := *req.Volume.LocalDisk
			req.Volume.LocalDisk = &disk
			change(&req)
			if _, err := p.Prepare(t.Context(), req); machine.KindOf(err) != machine.Invalid {
				t.Errorf("Prepare = %v, want Invalid", err)
			}
			elsewhere := strings.HasPrefix(name, "a directory") || strings.HasSuffix(name, "climbs") || name == "a relative directory" || name == "no machine"
			if err := p.Delete(t.Context(), req); elsewhere && machine.KindOf(err) != machine.Invalid {
				t.Errorf("Delete = %v, want Invalid", err)
			}
		})
	}
}

func TestOnlyLocalDisksAreSupported(t *testing.T) {
	p := newPlugin(t)
	local := machine.Volume{Name: "a", LocalDisk: &machine.LocalDisk{}}
	remote := machine.Volume{Name: "a", Connection: &machine.Connection{Driver: "ceph"}}
	if !p.Supports(local) || p.Supports(remote) || p.Supports(machine.Volume{Name: "a"}) {
		t.Error("wrong volumes are supported")
	}
	if p.Name() != Name {
		t.Errorf("name is %q", p.Name())
	}
}
