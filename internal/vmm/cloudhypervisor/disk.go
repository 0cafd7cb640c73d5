// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

const (
	sectorSize = 512
	// refillTime is the time, in milliseconds, in which a token bucket fills: limits are per second.
	refillTime = 1000
)

// cachePolicies says what becomes of a policy on each path. With a file or block device the VMM always offers the
// guest a write cache and syncs when the guest flushes it: it can neither be made to sync each write nor to ignore a
// flush, so two policies are missing and "unsafe" is as safe as writeback. What a vhost-user server does is decided
// where it is started; a storage daemon of QEMU hides the cache from the guest, so flushing is its own task.
func cachePolicies() map[vmm.DiskPath]map[vmm.CachePolicy]vmm.CachePolicy {
	native := func() map[vmm.CachePolicy]vmm.CachePolicy {
		return map[vmm.CachePolicy]vmm.CachePolicy{
			vmm.CacheNone: vmm.CacheNone, vmm.CacheWriteBack: vmm.CacheWriteBack, vmm.CacheUnsafe: vmm.CacheWriteBack,
		}
	}
	return map[vmm.DiskPath]map[vmm.CachePolicy]vmm.CachePolicy{
		vmm.PathFile:  native(),
		vmm.PathBlock: native(),
		vmm.PathVhostUser: {
			vmm.CacheDirectSync: vmm.CacheDirectSync, vmm.CacheNone: vmm.CacheDirectSync,
			vmm.CacheWriteThrough: vmm.CacheWriteThrough, vmm.CacheWriteBack: vmm.CacheWriteThrough,
			vmm.CacheUnsafe: vmm.CacheUnsafe,
		},
	}
}

// validateDisk looks at the disk alone and opens nothing.
func validateDisk(field string, disk vmm.Disk, seen map[string]bool) error {
	switch {
	case disk.RBD != nil:
		return machine.Errorf(machine.Unimplemented, "%s.rbd: Cloud Hypervisor is no client of Ceph; a vhost-user server can be one for it", field)
	case disk.Path != "" && disk.VhostUser != "":
		return machine.InvalidField(field, "has both a path and a vhost-user socket")
	case disk.VhostUser == "" && !filepath.IsAbs(disk.Path):
		return machine.InvalidField(field+".path", "%q is not an absolute path", disk.Path)
	case disk.VhostUser != "" && !filepath.IsAbs(disk.VhostUser):
		return machine.InvalidField(field+".vhostUser", "%q is not an absolute path", disk.VhostUser)
	case len(disk.VhostUser) > maxSocketPath:
		return machine.InvalidField(field+".vhostUser", "has %d bytes, a socket's path has at most %d", len(disk.VhostUser), maxSocketPath)
	case len(disk.Serial) > maxSerial:
		return machine.InvalidField(field+".serial", "%q has %d bytes, at most %d are possible", disk.Serial, len(disk.Serial), maxSerial)
	}
	switch disk.Format {
	case "", vmm.FormatRaw:
	case vmm.FormatQcow2:
		if disk.VhostUser != "" {
			return machine.InvalidField(field+".format", "is %q, which a vhost-user server hides", disk.Format)
		}
	default:
		return machine.Errorf(machine.Unimplemented, "%s.format: Cloud Hypervisor knows no format %q", field, disk.Format)
	}
	if err := validateCache(field, disk); err != nil {
		return err
	}
	if err := validateLimits(field, disk); err != nil {
		return err
	}
	return validateID(field, disk.ID, disks, seen)
}

func validateCache(field string, disk vmm.Disk) error {
	path := vmm.PathFile // a block device has the same policies
	if disk.VhostUser != "" {
		path = vmm.PathVhostUser
	}
	policies := cachePolicies()[path]
	if _, ok := policies[disk.Cache]; disk.Cache == "" || ok {
		return nil
	}
	switch disk.Cache {
	case vmm.CacheDirectSync, vmm.CacheWriteThrough:
		return machine.Errorf(machine.Unimplemented, "%s.cache: Cloud Hypervisor cannot be made to flush each write (%q); use none or writeback, which keep what the guest flushes", field, disk.Cache)
	default:
		return machine.InvalidField(field+".cache", "%q is not known", disk.Cache)
	}
}

func validateLimits(field string, disk vmm.Disk) error {
	l := disk.Limits
	for name, n := range map[string]int64{
		"readBytes": l.ReadBytes, "writeBytes": l.WriteBytes, "totalBytes": l.TotalBytes,
		"readOps": l.ReadOps, "writeOps": l.WriteOps, "totalOps": l.TotalOps,
	} {
		if n < 0 {
			return machine.InvalidField(field+".limits."+name, "is %d, must not be negative", n)
		}
	}
	for _, split := range []struct {
		name string
		n    int64
	}{{"readBytes", l.ReadBytes}, {"writeBytes", l.WriteBytes}, {"readOps", l.ReadOps}, {"writeOps", l.WriteOps}} {
		if split.n != 0 {
			return machine.Errorf(machine.Unimplemented, "%s.limits.%s: Cloud Hypervisor bounds reads and writes together; use totalBytes and totalOps", field, split.name)
		}
	}
	if disk.VhostUser != "" && l != (vmm.IOLimits{}) {
		return machine.Errorf(machine.Unimplemented, "%s.limits: Cloud Hypervisor does not see the requests of a vhost-user disk", field)
	}
	return nil
}

// diskOf is the disk as the VMM is told.
func diskOf(d vmm.Disk) api.Disk {
	a := api.Disk{
		ID: d.ID, Path: d.Path, ReadOnly: d.ReadOnly, Serial: d.Serial, ImageType: api.ImageTypeRaw,
		Direct: d.Cache == vmm.CacheNone, RateLimiter: limiterOf(d.Limits),
	}
	if d.Format == vmm.FormatQcow2 {
		a.ImageType, a.BackingFiles = api.ImageTypeQcow2, true
	}
	if d.VhostUser != "" {
		a.VhostUser, a.VhostSocket, a.Direct = true, d.VhostUser, false
	}
	return a
}

func limiterOf(l vmm.IOLimits) *api.RateLimiter {
	bucket := func(n int64) *api.TokenBucket {
		if n == 0 {
			return nil
		}
		return &api.TokenBucket{Size: n, RefillTime: refillTime}
	}
	if l.TotalBytes == 0 && l.TotalOps == 0 {
		return nil
	}
	return &api.RateLimiter{Bandwidth: bucket(l.TotalBytes), Ops: bucket(l.TotalOps)}
}

// checkDisk looks at what is behind a disk before the VMM does, for what the VMM would do silently or slowly.
func checkDisk(ctx context.Context, field string, d vmm.Disk) error {
	if d.VhostUser != "" {
		return pingVhostUser(ctx, d.VhostUser)
	}
	if d.Cache != vmm.CacheNone {
		return nil
	}
	return checkSectors(field, d, directAlignment)
}

// checkSectors refuses to show the guest sectors of another size. The VMM makes them as large as the filesystem wants
// unbuffered requests to be, and a disk that was written with sectors of 512 bytes cannot be read with others. Block
// devices keep their own sectors either way.
func checkSectors(field string, d vmm.Disk, alignment func(path string) (bytes int64, known bool)) error {
	if n, known := alignment(d.Path); known && n > sectorSize {
		return machine.Errorf(machine.Unimplemented, "%s.cache: with %q the guest would see sectors of %d bytes on %s, whose filesystem takes no smaller unbuffered requests; use writeback", field, d.Cache, n, d.Path)
	}
	return nil
}

// checkGrowth refuses to shrink a disk, which the VMM would do with a raw file without asking back.
func checkGrowth(d api.Disk, size int64) error {
	now, backed, err := virtualSize(d)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission):
		return machine.Wrap(machine.FailedPrecondition, err, "ask for the size of disk "+d.ID)
	case err != nil:
		return machine.Wrap(machine.Unavailable, err, "ask for the size of disk "+d.ID)
	case size < now:
		return machine.InvalidField("size", "is %d, the disk %s has %d bytes already and does not shrink", size, d.ID, now)
	case backed:
		return machine.Errorf(machine.Unimplemented, "Cloud Hypervisor does not resize a qcow2 image with a backing file (%s)", d.Path)
	}
	return nil
}

// virtualSize is what the guest sees of a file or block device, and whether there is another file below it.
func virtualSize(d api.Disk) (size int64, backed bool, err error) {
	f, err := os.Open(d.Path)
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	if d.ImageType != api.ImageTypeQcow2 {
		size, err = f.Seek(0, io.SeekEnd)
		return size, false, err
	}
	// magic, version, offset of the backing file's name, its length, bits of a cluster, size
	var head [32]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return 0, false, fmt.Errorf("read qcow2 header of %s: %w", d.Path, err)
	}
	return int64(binary.BigEndian.Uint64(head[24:])), binary.BigEndian.Uint64(head[8:]) != 0, nil
}
