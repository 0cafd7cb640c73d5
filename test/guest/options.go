// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
)

const (
	// RootLabel is the ext4 label by which the guest finds its root disk.
	RootLabel = "chp-root"
	// DefaultRootBytes is the size of the root disk: enough for a journal and a counter.
	DefaultRootBytes = 32 << 20
	// minRootBytes leaves mkfs room for a journal of 1024 blocks.
	minRootBytes = 8 << 20
)

// DefaultCacheDir is where tests and commands share downloads and guests: $CHP_GUEST_CACHE, else a directory below the
// user's cache directory, else one below the temporary directory.
func DefaultCacheDir() string {
	if dir := os.Getenv("CHP_GUEST_CACHE"); dir != "" {
		return dir
	}
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	return filepath.Join(base, "cloud-hypervisor-provider", "guest")
}

// Options configures Build.
type Options struct {
	// CacheDir holds downloaded packages and finished guests; created if absent. Required.
	CacheDir string
	// Arch is "amd64" or "arm64"; default: the host's.
	Arch string
	// KernelTree is an unpacked kernel package (boot/vmlinuz-*, lib/modules/*). Default: Debian's cloud kernel,
	// downloaded once and then kept, so that a guest does not change under a developer's hands.
	KernelTree string
	// Busybox is a static busybox. Default: /bin/busybox when it is static and of the right architecture, else the
	// one of Debian's busybox-static.
	Busybox string
	// InitDir is the source directory of the guest's process 1. Default: found by the go command, which then has to
	// be called inside this module.
	InitDir string
	// RootBytes is the size of the root disk in bytes; default DefaultRootBytes, at least 8 MiB, whole MiB.
	RootBytes int64
	// Modules are more kernel modules to load at each boot, by name; an error says which the kernel does not have.
	Modules []string
	// GuestAgent puts Debian's QEMU guest agent with its libraries into the guest, which then runs it when the kernel
	// command line has chp.agent: on the virtio-serial port where there is one, else on vsock port 1024. It doubles the
	// size of the initramfs.
	GuestAgent bool
	// Logger tells what is built and how long it took; default: silent.
	Logger *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.CacheDir == "" {
		return o, errors.New("build guest: no cache directory given")
	}
	dir, err := filepath.Abs(o.CacheDir)
	if err != nil {
		return o, fmt.Errorf("build guest: %w", err)
	}
	o.CacheDir = dir
	if o.Arch == "" {
		o.Arch = runtime.GOARCH
	}
	if o.Arch != "amd64" && o.Arch != "arm64" {
		return o, fmt.Errorf("build guest: architecture %q is neither amd64 nor arm64", o.Arch)
	}
	if o.RootBytes == 0 {
		o.RootBytes = DefaultRootBytes
	}
	if o.RootBytes < minRootBytes || o.RootBytes%(1<<20) != 0 {
		return o, fmt.Errorf("build guest: root disk of %d bytes; it has to be whole MiB, at least %d bytes", o.RootBytes, minRootBytes)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(filepath.Join(dir, "guests"), 0o750); err != nil {
		return o, fmt.Errorf("create guest cache: %w", err)
	}
	return o, nil
}

// Files are the parts of a built guest. They belong to the cache: copy the root disk before a guest writes to it.
type Files struct {
	// Arch is the guest's architecture, in Go's names.
	Arch string `json:"arch"`
	// KernelVersion is the kernel's release, as in uname -r.
	KernelVersion string `json:"kernelVersion"`
	// Kernel is the kernel as distributed (amd64: a bzImage).
	Kernel string `json:"-"`
	// VMLinux is the uncompressed kernel (amd64: an ELF file with a PVH entry point), which boots faster under
	// emulation.
	VMLinux string `json:"-"`
	// Initramfs is a gzip-compressed cpio archive.
	Initramfs string `json:"-"`
	// RootDisk is a sparse raw disk image: ext4, labelled RootLabel, not partitioned.
	RootDisk string `json:"-"`
}

// DefaultCommandLine is the kernel command line that suits a guest of the architecture: console on the serial port,
// reboot at once after a panic.
func DefaultCommandLine(arch string) string {
	if arch == "arm64" {
		return "console=ttyAMA0 quiet panic=-1"
	}
	return "console=ttyS0 quiet panic=-1 tsc=reliable"
}
