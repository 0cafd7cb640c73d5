// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest/debian"
)

// layout is part of every cache key; raise it when the packer, the module lists or the applets change.
const layout = 1

const (
	fileKernel    = "vmlinuz"
	fileVMLinux   = "vmlinux"
	fileInitramfs = "initramfs.img"
	fileRootDisk  = "root.img"
	fileInfo      = "guest.json" // written last into the work directory; its presence proves nothing else
)

// Build returns a guest, building what the cache does not have. Concurrent builds, also of other processes, do the
// work once; a build that is killed leaves nothing that a later one would take for complete. It needs apt-get and
// dpkg-deb (unless KernelTree and Busybox are given), mkfs.ext4 and the go command; an error says which is missing
// and what to run.
func Build(ctx context.Context, o Options) (Files, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Files{}, err
	}
	in, err := gather(ctx, o)
	if err != nil {
		return Files{}, fmt.Errorf("build guest: %w", err)
	}
	dir := filepath.Join(o.CacheDir, "guests", o.Arch+"-"+in.key)
	unlock, err := debian.Lock(ctx, filepath.Join(o.CacheDir, "guests", "lock"))
	if err != nil {
		return Files{}, fmt.Errorf("build guest: %w", err)
	}
	defer unlock()
	if files, err := Open(dir); err == nil {
		o.Logger.Info("guest is in the cache", "dir", dir, "kernel", files.KernelVersion)
		return files, nil
	}
	if err := produce(ctx, o, in, dir); err != nil {
		return Files{}, fmt.Errorf("build guest: %w", err)
	}
	return Open(dir)
}

// Open returns the finished guest in a directory that Build made, or in a copy of one. It is for places where nothing
// can be built.
func Open(dir string) (Files, error) {
	raw, err := os.ReadFile(filepath.Join(dir, fileInfo))
	if err != nil {
		return Files{}, err
	}
	var f Files
	if err := json.Unmarshal(raw, &f); err != nil {
		return Files{}, fmt.Errorf("read %s: %w", filepath.Join(dir, fileInfo), err)
	}
	f.Kernel, f.VMLinux = filepath.Join(dir, fileKernel), filepath.Join(dir, fileVMLinux)
	f.Initramfs, f.RootDisk = filepath.Join(dir, fileInitramfs), filepath.Join(dir, fileRootDisk)
	return f, nil
}

// inputs is all that decides what a guest looks like.
type inputs struct {
	kernel  kernelTree
	busybox []byte
	initDir string
	agent   []guestFile // empty if not wanted
	key     string
}

type kernelTree struct {
	image   string
	modules string
	release string
	// identity stands for the content in the cache key.
	identity string
}

func gather(ctx context.Context, o Options) (inputs, error) {
	var in inputs
	var err error
	cache, err := debian.NewCache(debian.Options{Dir: filepath.Join(o.CacheDir, "packages"), Arch: o.Arch, Logger: o.Logger})
	if err != nil {
		return in, err
	}
	if in.kernel, err = findKernel(ctx, o, cache); err != nil {
		return in, err
	}
	if in.busybox, err = findBusybox(ctx, o, cache); err != nil {
		return in, err
	}
	if in.initDir, err = findInit(ctx, o.InitDir); err != nil {
		return in, err
	}
	if o.GuestAgent {
		if in.agent, err = findAgent(ctx, cache, o.Arch); err != nil {
			return in, err
		}
	}
	in.key, err = cacheKey(o, in)
	return in, err
}

func cacheKey(o Options, in inputs) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "layout %d\ngo %s\narch %s\nroot %d\nkernel %s\nbusybox %x\n",
		layout, runtime.Version(), o.Arch, o.RootBytes, in.kernel.identity, sha256.Sum256(in.busybox))
	if err := hashSources(h, in.initDir); err != nil {
		return "", err
	}
	if len(o.Modules) > 0 {
		fmt.Fprintf(h, "modules %q\n", o.Modules)
	}
	for _, f := range in.agent {
		fmt.Fprintf(h, "agent %s %o %x\n", f.name, f.mode, sha256.Sum256(f.data))
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

func hashSources(h hash.Hash, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no Go files in %s", dir)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d\n", filepath.Base(file), len(data))
		h.Write(data)
	}
	return nil
}

// produce builds into a work directory and renames it into place.
func produce(ctx context.Context, o Options, in inputs, dir string) error {
	start := time.Now()
	tmp, err := workDir(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"kernel", func() error { return writeKernels(ctx, o.Arch, in.kernel.image, tmp) }},
		{"initramfs", func() error { return writeInitramfs(ctx, o, in, tmp) }},
		{"root disk", func() error { return makeRootDisk(ctx, filepath.Join(tmp, fileRootDisk), o.RootBytes) }},
	} {
		began := time.Now()
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		o.Logger.Info("built guest part", "part", step.name, "took", time.Since(began).Round(time.Millisecond))
	}
	info, err := json.Marshal(Files{Arch: o.Arch, KernelVersion: in.kernel.release})
	if err != nil {
		return err
	}
	if err := writeFileSynced(filepath.Join(tmp, fileInfo), info); err != nil {
		return err
	}
	// A directory without its information file cannot be used and cannot be renamed over.
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return err
	}
	o.Logger.Info("built guest", "dir", dir, "kernel", in.kernel.release, "took", time.Since(start).Round(time.Millisecond))
	return nil
}

// workDir removes what killed builds have left and makes a fresh directory; the caller holds the lock.
func workDir(parent string) (string, error) {
	old, err := filepath.Glob(filepath.Join(parent, "tmp-*"))
	if err != nil {
		return "", err
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			return "", err
		}
	}
	return os.MkdirTemp(parent, "tmp-")
}

func writeKernels(ctx context.Context, arch, image, dir string) error {
	raw, err := os.ReadFile(image)
	if err != nil {
		return err
	}
	if err := writeFileSynced(filepath.Join(dir, fileKernel), raw); err != nil {
		return err
	}
	plain := raw
	if arch == "amd64" {
		plain, err = vmlinuxFromBzImage(ctx, raw)
	} else if out, known, expandErr := expand(ctx, raw); known {
		plain, err = out, expandErr
	}
	if err != nil {
		return fmt.Errorf("uncompress %s: %w", image, err)
	}
	return writeFileSynced(filepath.Join(dir, fileVMLinux), plain)
}

func writeInitramfs(ctx context.Context, o Options, in inputs, dir string) error {
	binary, err := compileInit(ctx, o.Arch, in.initDir, dir)
	if err != nil {
		return err
	}
	boot, vfat, err := collectModules(ctx, in.kernel.modules, o.Modules)
	if err != nil {
		return err
	}
	data, err := initramfs(initramfsParts{init: binary, busybox: in.busybox, boot: boot, vfat: vfat, agent: in.agent})
	if err != nil {
		return err
	}
	return writeFileSynced(filepath.Join(dir, fileInitramfs), data)
}

func compileInit(ctx context.Context, arch, source, dir string) ([]byte, error) {
	out := filepath.Join(dir, "init")
	defer func() { _ = os.Remove(out) }()
	_, err := goCommand(ctx, source, []string{"GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1", "CGO_ENABLED=0"},
		"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", out, ".")
	if err != nil {
		return nil, fmt.Errorf("compile process 1: %w", err)
	}
	binary, err := os.ReadFile(out)
	if errors.Is(err, fs.ErrNotExist) || len(binary) == 0 {
		return nil, errors.New("compile process 1: the go command left no program")
	}
	return binary, err
}
