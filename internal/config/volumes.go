// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import "time"

// Values of the settings about volumes.
const (
	// In libvirt's spelling.
	CacheNone         = "none"
	CacheWriteBack    = "writeback"
	CacheWriteThrough = "writethrough"
	CacheDirectSync   = "directsync"
	CacheUnsafe       = "unsafe"

	OverlaysNever = "never"

	CephStorageDaemon = "storage-daemon"

	ReplugNever   = "never"
	ReplugAllowed = "allowed"
)

// Volumes is how machines' disks are kept.
type Volumes struct {
	CachePolicy    string
	KeepDetached   time.Duration
	ResizeByReplug string
	LocalDisk      LocalDisk
	Ceph           Ceph
}

// LocalDisk is about disks that are files of this host.
type LocalDisk struct {
	Overlays string
	Limits   DiskLimits
}

// DiskLimits bound each disk, in bytes and requests a second; 0 is no bound.
type DiskLimits struct {
	TotalBytes, ReadBytes, WriteBytes int64
	TotalOps, ReadOps, WriteOps       int
}

// Ceph is about RBD images. StorageDaemon is empty when it is looked for in PATH.
type Ceph struct {
	Access        string
	StorageDaemon string
}

func volumeFields() []Field {
	policies := []string{CacheNone, CacheWriteBack, CacheWriteThrough, CacheDirectSync, CacheUnsafe}
	overlays := []string{OverlaysNever, Auto}
	replugs := []string{ReplugNever, ReplugAllowed}
	fields := []Field{
		{
			Path: "volumes.cachePolicy", Flag: "volume-cache-policy", Type: TypeString, Allowed: policies,
			Doc:   "What stands between guests' writes and the medium, as QEMU and libvirt name it; see storage.md for what each path makes of it. All but `unsafe` keep what a guest flushed; a policy that the hypervisor cannot keep is refused at start.",
			codec: choice(func(c *Config) *string { return &c.Volumes.CachePolicy }, policies),
		},
		{
			Path: "volumes.keepDetached", Type: TypeDuration, Limits: "1s to 720h",
			Doc:   "How long the data of a detached local disk are kept, in case it is attached again; the machine's end removes them at once.",
			codec: duration(func(c *Config) *time.Duration { return &c.Volumes.KeepDetached }, time.Second, 720*time.Hour),
		},
		{
			Path: "volumes.resizeByReplug", Type: TypeString, Allowed: replugs,
			Doc:   "Whether a disk whose running guest cannot be told of a new size is taken out and put in again. `never`: a condition says that a reboot is needed.",
			codec: choice(func(c *Config) *string { return &c.Volumes.ResizeByReplug }, replugs),
		},
		{
			Path: "volumes.localDisk.overlays", Type: TypeString, Allowed: overlays,
			Doc:   "Whether new disks that begin as an image are qcow2 overlays on the cached image. `auto`: where the file system cannot clone files. `never`: the image is copied. Disks that exist stay as they are.",
			codec: choice(func(c *Config) *string { return &c.Volumes.LocalDisk.Overlays }, overlays),
		},
	}
	limits := func(c *Config) *DiskLimits { return &c.Volumes.LocalDisk.Limits }
	for _, l := range []struct {
		name, what string
		place      func(*DiskLimits) *int64
	}{
		{"totalBytes", "reads and writes", func(l *DiskLimits) *int64 { return &l.TotalBytes }},
		{"readBytes", "reads", func(l *DiskLimits) *int64 { return &l.ReadBytes }},
		{"writeBytes", "writes", func(l *DiskLimits) *int64 { return &l.WriteBytes }},
	} {
		fields = append(fields, Field{
			Path: "volumes.localDisk.limits." + l.name, Type: TypeBytes, Limits: "0 to 1Ti; 0 is no limit",
			Doc:   "Bytes a second that a local disk " + l.what + " at most.",
			codec: bytesValue(func(c *Config) *int64 { return l.place(limits(c)) }, 0, 1<<40),
		})
	}
	for _, l := range []struct {
		name, what string
		place      func(*DiskLimits) *int
	}{
		{"totalOps", "reads and writes", func(l *DiskLimits) *int { return &l.TotalOps }},
		{"readOps", "reads", func(l *DiskLimits) *int { return &l.ReadOps }},
		{"writeOps", "writes", func(l *DiskLimits) *int { return &l.WriteOps }},
	} {
		fields = append(fields, Field{
			Path: "volumes.localDisk.limits." + l.name, Type: TypeInt, Limits: "0 to 1000000000; 0 is no limit",
			Doc:   "Requests a second by which a local disk " + l.what + " at most.",
			codec: integer(func(c *Config) *int { return l.place(limits(c)) }, 0, 1_000_000_000),
		})
	}
	accesses := []string{Auto, CephStorageDaemon}
	return append(fields, Field{
		Path: "volumes.ceph.access", Type: TypeString, Allowed: accesses,
		Doc:   "How machines reach RBD images. `auto`: by the hypervisor itself where it is a client of Ceph. `storage-daemon`: always by a storage daemon for each volume, so that no hypervisor process has a key.",
		codec: choice(func(c *Config) *string { return &c.Volumes.Ceph.Access }, accesses),
	}, Field{
		Path: "volumes.ceph.storageDaemon", Type: TypePath, Empty: "qemu-storage-daemon is looked for in PATH",
		Doc:   "The qemu-storage-daemon executable, which serves RBD images to hypervisors that are no clients of Ceph.",
		codec: text(func(c *Config) *string { return &c.Volumes.Ceph.StorageDaemon }, absolute),
	})
}

// defaultVolumes: writeback is the one policy that every driver keeps, or exceeds, on every path and file system. Whole
// copies are the default, since they depend on no other file and grow under every hypervisor.
func defaultVolumes() Volumes {
	return Volumes{
		CachePolicy: CacheWriteBack, KeepDetached: 10 * time.Minute, ResizeByReplug: ReplugNever,
		LocalDisk: LocalDisk{Overlays: OverlaysNever}, Ceph: Ceph{Access: Auto},
	}
}

func (r *loading) volumes() {
	const at = "volumes.localDisk.limits."
	l := r.cfg.Volumes.LocalDisk.Limits
	if r.sound(at+"totalBytes", at+"readBytes", at+"writeBytes") && l.TotalBytes > 0 && l.ReadBytes+l.WriteBytes > 0 {
		r.fail(at+"totalBytes", "keep either", "contradicts the limits of reading and writing alone")
	}
	if r.sound(at+"totalOps", at+"readOps", at+"writeOps") && l.TotalOps > 0 && l.ReadOps+l.WriteOps > 0 {
		r.fail(at+"totalOps", "keep either", "contradicts the limits of reading and writing alone")
	}
	if !r.sound("hypervisor.driver", "volumes.cachePolicy", at+"readBytes", at+"writeBytes", at+"readOps", at+"writeOps") ||
		r.cfg.Hypervisor.Driver != DriverCloudHypervisor {
		return
	}
	for _, one := range []struct {
		name string
		n    int64
	}{{"readBytes", l.ReadBytes}, {"writeBytes", l.WriteBytes}, {"readOps", int64(l.ReadOps)}, {"writeOps", int64(l.WriteOps)}} {
		if one.n > 0 {
			r.fail(at+one.name, "use totalBytes or totalOps", "Cloud Hypervisor bounds reads and writes together")
		}
	}
	if p := r.cfg.Volumes.CachePolicy; p == CacheWriteThrough || p == CacheDirectSync {
		r.fail("volumes.cachePolicy", "use writeback or none, which keep what a guest flushed", "Cloud Hypervisor cannot be made to flush each write, which %s means", p)
	}
}
