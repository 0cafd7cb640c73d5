// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmm

import "context"

// Plugger is an optional ability of a VM: to change the devices of a defined VM, whether its guest runs or not. A guest
// may take its time to let go of a device, or refuse: until it has let go the device counts as present
// (Observation.Disks, .NICs) and nothing on the host's side is closed. Every method asks for the machine UUID first and
// returns ErrIdentity when it is another's, and is idempotent, also over a kill of the daemon in its middle.
type Plugger interface {
	// AttachDisk plugs a disk in; no-op if one of that ID is there. FailedPrecondition while an earlier one of that ID
	// is still leaving, and when the medium is not there or cannot serve the cache policy; Exhausted, naming the limit,
	// when no slot is free; Unimplemented when this VMM was started without what it takes and needs a new process.
	// After an error nothing of the disk is left in the VMM.
	AttachDisk(ctx context.Context, d Disk) error
	// DetachDisk asks the guest to let go of a disk, and closes what it has let go of already. nil = asked, or gone:
	// Inspect tells which, and EventDeviceRemoved when. To be called again: it repeats the request.
	DetachDisk(ctx context.Context, id string) error
	// ResizeDisk tells the guest that the disk has size bytes now, after the medium was grown: a raw file or a block
	// device by its plugin, an image in Ceph by the cluster. The size in a qcow2 file is the VMM's to change while it has
	// the file open, so its plugin leaves it alone then. A raw medium is never shrunk, whatever size says: the guest is
	// told what there is. No-op if the guest has that size. Invalid when it has more; NotFound when there is no such
	// disk; FailedPrecondition when the medium has less; Unimplemented when the path to the guest cannot tell: the guest
	// then learns it at its next boot.
	ResizeDisk(ctx context.Context, id string, size int64) error
	// AttachNIC and DetachNIC are the same for network interfaces.
	AttachNIC(ctx context.Context, n NIC) error
	DetachNIC(ctx context.Context, id string) error
}

// DiskFormat is how a disk's bytes are laid out in its file.
type DiskFormat string

// The formats. Raw is the default; a qcow2 file names its backing file itself.
const (
	FormatRaw   DiskFormat = "raw"
	FormatQcow2 DiskFormat = "qcow2"
)

// CachePolicy says what stands between the guest's writes and the medium, as QEMU and libvirt name it.
type CachePolicy string

// The policies, weakest durability last. All but unsafe keep what the guest flushed.
const (
	CacheDirectSync   CachePolicy = "directsync"   // host page cache bypassed, every write flushed
	CacheWriteThrough CachePolicy = "writethrough" // host page cache, every write flushed
	CacheNone         CachePolicy = "none"         // host page cache bypassed, flushed when the guest asks
	CacheWriteBack    CachePolicy = "writeback"    // host page cache, flushed when the guest asks
	CacheUnsafe       CachePolicy = "unsafe"       // host page cache, never flushed
)

// DiskPath is the way a guest's requests take to the medium. What a cache policy can mean depends on it.
type DiskPath string

// The paths.
const (
	PathFile      DiskPath = "file"       // Disk.Path is a file
	PathBlock     DiskPath = "block"      // Disk.Path is a block device
	PathRBD       DiskPath = "rbd"        // Disk.RBD: the VMM is a client of Ceph itself
	PathVhostUser DiskPath = "vhost-user" // Disk.VhostUser: another process serves the disk
)

// RBD is an image in a Ceph cluster. Key and passphrase are secrets: they go to the VMM by its control socket or by
// a file of mode 0600, never by its arguments.
type RBD struct {
	Monitors []string // "host:port"
	Pool     string
	Image    string
	User     string // without the "client." prefix
	Key      string // base64, as in a keyring
	// Passphrase opens the LUKS2 encryption of the image; empty = it is not encrypted.
	Passphrase string
}

// IOLimits bound what a disk does, each in units a second; 0 = no bound.
type IOLimits struct {
	ReadBytes, WriteBytes, TotalBytes int64
	ReadOps, WriteOps, TotalOps       int64
}
