// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package localdisk provides disks kept as raw files on this host, empty or beginning as a copy of an image. It exists
// so that a machine has a root disk without any storage system around.
//
// A disk is <directory of the volume>/disk.raw. It is made under a temporary name, flushed and renamed, so that a file
// with the final name is always a whole disk, and from then on it belongs to the guest: it is used as it is over every
// restart of guest, daemon and host, and may only grow. The package must never write a disk that exists, shrink one, or
// take a half-made one for whole.
package localdisk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

const (
	// Name is the plugin's name in records.
	Name = "local-disk"
	// HandlePrefix precedes the volume's name in handles.
	HandlePrefix = "cloud-hypervisor-provider.ironcore.dev/local-disk/"
	// DefaultSize is the size in bytes of an empty disk for which none was asked, that of libvirt-provider.
	DefaultSize = 500 << 20
	// MaxSize bounds a disk in bytes: 16 TiB is the largest file of ext4 with 4 KiB blocks.
	MaxSize = 16 << 40

	diskName = "disk.raw"
	tempName = "disk.raw.tmp"
	// sectorSize is what sizes are rounded up to, in bytes; VMMs hide a trailing part of a sector.
	sectorSize = 512
	// spaceReserve is left free by a copy, in bytes, so that the state store can still write.
	spaceReserve = 64 << 20

	dirMode  = 0o750
	fileMode = 0o640
)

// Options configure a Plugin. All are optional.
type Options struct {
	Logger *slog.Logger // default: none
	// FreeSpace returns the bytes available on the file system of a directory; default: ask the kernel.
	FreeSpace func(dir string) (uint64, error)
	// Overlays makes disks that begin as an image qcow2 overlays on the one cached file, where the file system cannot
	// clone files. Only for hypervisors that read qcow2.
	Overlays bool
	Limits   volume.Limits // of every disk
}

// Plugin makes and removes local disks.
type Plugin struct {
	log       *slog.Logger
	freeSpace func(string) (uint64, error)
	overlays  bool
	limits    volume.Limits
	clone     func(dst, src *os.File) error
	copy      func(ctx context.Context, dst, src *os.File, size int64) (method string, err error)
}

var (
	_ volume.Plugin  = (*Plugin)(nil)
	_ volume.Retirer = (*Plugin)(nil)
)

// New returns a Plugin.
func New(o Options) (*Plugin, error) {
	p := &Plugin{
		log: o.Logger, freeSpace: o.FreeSpace, overlays: o.Overlays, limits: o.Limits, clone: cloneFile, copy: copyImage,
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.freeSpace == nil {
		p.freeSpace = freeSpace
	}
	return p, nil
}

// Name returns the plugin's name.
func (p *Plugin) Name() string { return Name }

// Supports reports whether v is a local disk.
func (p *Plugin) Supports(v machine.Volume) bool { return v.LocalDisk != nil && v.Connection == nil }

// Validate checks name and size.
func (p *Plugin) Validate(field string, v machine.Volume) error {
	if err := machine.ValidateName(field+".name", v.Name); err != nil {
		return err
	}
	if v.LocalDisk == nil {
		return machine.InvalidField(field+".local_disk", "must be set")
	}
	if n := v.LocalDisk.SizeBytes; n < 0 || n > MaxSize {
		return machine.InvalidField(field+".local_disk.size_bytes", "%d is out of range, 0 to %d bytes are possible", n, int64(MaxSize))
	}
	return nil
}

// Prepare returns the disk, making it if there is none and growing it if a larger size is asked for. The errors are of
// kind Invalid for a bad request, Exhausted for lack of space, FailedPrecondition where something that is no disk stands
// in its place or the image is missing, else Unavailable.
func (p *Plugin) Prepare(ctx context.Context, req volume.Request) (volume.Prepared, error) {
	if err := p.Validate("volume", req.Volume); err != nil {
		return volume.Prepared{}, err
	}
	if err := p.check(req); err != nil {
		return volume.Prepared{}, err
	}
	path, format, size, err := find(req.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && req.Made:
		return volume.Prepared{}, machine.Errorf(machine.FailedPrecondition,
			"local disk %s was there and is missing now; it is not made anew over what may come back", req.Volume.Name)
	case errors.Is(err, fs.ErrNotExist):
		path, format, size, err = p.create(ctx, req)
	case err == nil && format == volume.FormatQcow2:
		size, err = p.growOverlay(ctx, path, size, roundUp(req.Volume.LocalDisk.SizeBytes))
	case err == nil:
		size, err = p.grow(path, size, roundUp(req.Volume.LocalDisk.SizeBytes))
	}
	if err == nil {
		err = settle(req.Dir)
	}
	if err != nil {
		return volume.Prepared{}, classify(err, "prepare local disk "+req.Volume.Name)
	}
	return volume.Prepared{
		Handle: HandlePrefix + req.Volume.Name, Path: path, Format: format, SizeBytes: size, Limits: p.limits,
		Serial: machine.Serial(req.MachineID, req.Volume.Name, req.Volume.Device),
	}, nil
}

// Identity tells apart what a disk begins as: of one image, another, or none.
func (p *Plugin) Identity(v machine.Volume) string {
	const version = "v1"
	if v.LocalDisk == nil || v.LocalDisk.Image == nil || *v.LocalDisk.Image == "" {
		return version
	}
	return version + " " + *v.LocalDisk.Image
}

// Release has nothing to let go of: a disk is a file and nothing else.
func (p *Plugin) Release(context.Context, volume.Request) error { return nil }

// Retire gives the directory another name; nil if there is none.
func (p *Plugin) Retire(_ context.Context, req, as volume.Request) error {
	if err := errors.Join(p.check(req), p.check(as)); err != nil {
		return err
	}
	doing := "put local disk " + req.Volume.Name + " away"
	if _, err := os.Lstat(as.Dir); err == nil { // renaming over an empty one would succeed
		if _, err := os.Lstat(req.Dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return machine.Errorf(machine.FailedPrecondition, "%s: %s is there already", doing, as.Dir)
	}
	if err := os.Rename(req.Dir, as.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return classify(err, doing)
	}
	if err := syncDir(filepath.Dir(as.Dir)); err != nil {
		return classify(err, doing)
	}
	p.log.Info("local disk put away", "machine", req.MachineID, "volume", req.Volume.Name, "as", as.Volume.Name)
	return nil
}

// Delete removes disk and directory; nil, without any write, if they are gone. A directory holding anything else is
// kept and reported.
func (p *Plugin) Delete(_ context.Context, req volume.Request) error {
	if err := p.check(req); err != nil {
		return err
	}
	doing := "delete local disk " + req.Volume.Name
	if _, err := os.Lstat(req.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, name := range []string{tempName, diskName, overlayTempName, overlayName, baseName} {
		if err := os.Remove(filepath.Join(req.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return classify(err, doing)
		}
	}
	err := os.Remove(req.Dir)
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		return machine.Wrap(machine.FailedPrecondition, err, doing+": the directory holds files of somebody else")
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return classify(err, doing)
	}
	if err := syncDir(filepath.Dir(req.Dir)); err != nil {
		return classify(err, doing)
	}
	p.log.Info("local disk deleted", "machine", req.MachineID, "volume", req.Volume.Name)
	return nil
}

// check proves that the directory is that of the volume, since files in it are going to be written or removed.
func (p *Plugin) check(req volume.Request) error {
	if err := machine.ValidateName("volume.name", req.Volume.Name); err != nil {
		return err
	}
	id := req.MachineID
	if id == "" || id == "." || id == ".." || filepath.Base(id) != id {
		return machine.InvalidField("machine", "%q is no machine id", id)
	}
	rest, ok := cutLast(filepath.Clean(req.Dir), req.Volume.Name)
	if ok {
		rest, ok = cutLast(rest, "volumes")
	}
	if ok {
		_, ok = cutLast(rest, id)
	}
	if !ok || !filepath.IsAbs(req.Dir) {
		return machine.Errorf(machine.Invalid, "directory %s does not belong to volume %s of machine %s", req.Dir, req.Volume.Name, id)
	}
	return nil
}

func cutLast(path, want string) (string, bool) {
	return filepath.Dir(path), filepath.Base(path) == want
}

// diskSize returns the size of an existing disk.
func diskSize(path string) (int64, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, machine.Errorf(machine.FailedPrecondition, "%s is no regular file", path)
	}
	return info.Size(), nil
}

// find returns the disk there is; fs.ErrNotExist if there is none.
func find(dir string) (path string, format volume.Format, size int64, err error) {
	path = filepath.Join(dir, diskName)
	size, err = diskSize(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return path, "", size, err
	}
	path = filepath.Join(dir, overlayName)
	size, err = overlaySize(path)
	return path, volume.FormatQcow2, size, err
}

// create makes the disk under a temporary name and renames it once it is whole and flushed.
func (p *Plugin) create(ctx context.Context, req volume.Request) (path string, format volume.Format, size int64, err error) {
	path = filepath.Join(req.Dir, diskName)
	size, err = p.createRaw(ctx, req, path)
	if !errors.Is(err, errNoClone) {
		return path, format, size, err
	}
	size = max(roundUp(req.Volume.LocalDisk.SizeBytes), roundUp(req.Image.SizeBytes))
	err = p.createOverlay(ctx, req, size)
	if errors.Is(err, errors.ErrUnsupported) {
		whole := *p
		whole.overlays = false
		size, err = whole.createRaw(ctx, req, path)
		return path, format, size, err
	}
	if err == nil {
		p.log.Info("local disk made", "machine", req.MachineID, "volume", req.Volume.Name, "bytes", size, "method", "overlay")
	}
	return filepath.Join(req.Dir, overlayName), volume.FormatQcow2, size, err
}

func (p *Plugin) createRaw(ctx context.Context, req volume.Request, path string) (int64, error) {
	began := time.Now()
	size := roundUp(req.Volume.LocalDisk.SizeBytes)
	switch {
	case req.Image != nil:
		size = max(size, roundUp(req.Image.SizeBytes))
	case req.Volume.LocalDisk.Image != nil && *req.Volume.LocalDisk.Image != "":
		return 0, machine.Errorf(machine.FailedPrecondition, "image %s is not resolved", *req.Volume.LocalDisk.Image)
	case size == 0:
		size = DefaultSize
	}
	if size == 0 || size > MaxSize {
		return 0, machine.Errorf(machine.Invalid, "size %d is out of range, 1 to %d bytes are possible", size, int64(MaxSize))
	}
	if err := os.MkdirAll(req.Dir, dirMode); err != nil {
		return 0, err
	}
	temp := filepath.Join(req.Dir, tempName)
	// What an earlier, killed call left cannot be trusted: it was never flushed.
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	method, err := p.fill(ctx, temp, req.Image, size)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return 0, err
	}
	p.log.Info("local disk made", "machine", req.MachineID, "volume", req.Volume.Name, "bytes", size,
		"method", method, "took", time.Since(began))
	return size, nil
}

// fill writes a flushed file of the given size that begins as the image, if there is one.
func (p *Plugin) fill(ctx context.Context, temp string, image *volume.BootImage, size int64) (method string, err error) {
	dst, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	method = "empty"
	if image != nil {
		if method, err = p.copyFrom(ctx, dst, image); err != nil {
			return "", err
		}
	}
	if err := dst.Truncate(size); err != nil {
		return "", err
	}
	return method, dst.Sync()
}

func (p *Plugin) copyFrom(ctx context.Context, dst *os.File, image *volume.BootImage) (string, error) {
	src, err := os.Open(image.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", machine.Wrap(machine.FailedPrecondition, err, "open image")
	}
	if err != nil {
		return "", fmt.Errorf("open image: %w", err)
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return "", fmt.Errorf("open image: %w", err)
	}
	if info.Size() != image.SizeBytes {
		return "", machine.Errorf(machine.FailedPrecondition, "image %s has %d bytes, expected %d", image.Path, info.Size(), image.SizeBytes)
	}
	if p.clone(dst, src) == nil {
		return "clone", nil // shares the blocks, so neither time nor space is needed
	}
	if p.overlays {
		return "", errNoClone
	}
	free, err := p.freeSpace(filepath.Dir(dst.Name()))
	if err != nil {
		return "", err
	}
	if need := allocated(info); free < uint64(need)+spaceReserve {
		return "", machine.Errorf(machine.Exhausted, "copy of the image needs %d MiB, and %d MiB stay free for the store: %s has %d MiB",
			need>>20+1, spaceReserve>>20, filepath.Dir(dst.Name()), free>>20)
	}
	method, err := p.copy(ctx, dst, src, info.Size())
	if err != nil {
		return "", fmt.Errorf("copy image: %w", err)
	}
	return method, nil
}

// grow enlarges an existing disk. It never shrinks one: what lies beyond may be data.
func (p *Plugin) grow(path string, have, want int64) (int64, error) {
	if want <= have {
		return have, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := f.Truncate(want); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	p.log.Info("local disk grown", "path", path, "from", have, "to", want)
	return want, nil
}

// settle makes the names that lead to the disk durable: volume, "volumes" and machine directory. It is done for a disk
// that was there already as well, since an earlier call may have been killed right before; without it, a power failure
// could undo the rename after the guest had written.
func settle(dir string) error {
	for range 4 {
		if err := syncDir(dir); err != nil {
			return err
		}
		dir = filepath.Dir(dir)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func roundUp(n int64) int64 { return (n + sectorSize - 1) / sectorSize * sectorSize }

// classify gives an error its kind and says what was being done.
func classify(err error, doing string) error {
	kind := machine.KindOf(err)
	switch {
	case kind != machine.Unknown:
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		kind = machine.Exhausted
	default:
		kind = machine.Unavailable
	}
	return machine.Wrap(kind, err, doing)
}
