// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package volume is the seam between reconciling and whatever provides a machine's block devices. It exists so that
// a new kind of storage is one package. A plugin must never re-create a volume over data, never remove one that it
// cannot prove to be the machine's, and never wait for something that an event could tell.
package volume

import (
	"context"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// Plugin provides volumes of one kind. Calls for one volume are never concurrent; calls for different ones are.
type Plugin interface {
	// Name is stable and goes into records.
	Name() string
	// Supports reports whether this plugin is the one for v. Exactly one plugin may say yes.
	Supports(v machine.Volume) bool
	// Validate checks what can be known without acting; machine.Invalid errors name the field below "field".
	Validate(field string, v machine.Volume) error
	// Identity is equal for two definitions of a volume if they mean the same medium, reached in the same way: a guest
	// can then go from one to the other by a change of size at most. It holds no secret, but may hold a hash of one. It
	// outlives this program: one that is made up in another way begins with another version, "v1 " and so on, and is
	// compared by SameIdentity.
	Identity(v machine.Volume) string
	// Prepare makes the volume ready to be given to a VMM. Idempotent: it finishes what an earlier, killed call
	// began, and a finished volume is returned as it is (grown when a larger size is asked for; never shrunk).
	Prepare(ctx context.Context, req Request) (Prepared, error)
	// Release lets go of all that Prepare made on this host but the data: maps, sockets, storage daemons. nil if there
	// is nothing. Only after the VMM let go. Of req.Volume the name alone is certain: the rest may be of a later
	// volume of that name, or missing.
	Release(ctx context.Context, req Request) error
	// Delete releases the volume and removes its data if they are the machine's own; nil if there is nothing. As for
	// Release, only the name is certain.
	Delete(ctx context.Context, req Request) error
}

// Holder is an optional ability of a plugin: to tell of which volumes it holds something on this host (maps, sockets,
// storage daemons), also of machines that are not known any more. What it cannot prove to have made is not listed.
// What no machine knows of is released, with nothing but machine id, name and directory in the request.
type Holder interface {
	Held(ctx context.Context) ([]Ref, error)
}

// Retirer is an optional ability of a plugin that keeps a volume's data on this host: to put a released volume away under
// another name of the same machine, where its data are kept for a while and Delete finds them, so that a volume of its
// name can begin anew. nil if it is away already. As for Release, only names and directories are certain.
type Retirer interface {
	Retire(ctx context.Context, req, as Request) error
}

// Ref names one volume of one machine.
type Ref struct {
	MachineID string
	Name      string
}

// Request names one volume of one machine.
type Request struct {
	MachineID string
	Volume    machine.Volume
	Dir       string     // the volume's own directory (machines/<id>/volumes/<name>); made and removed by the plugin
	Image     *BootImage // the resolved image when Volume.LocalDisk.Image is set; may be nil once Made is
	// Made says that an earlier Prepare of this volume succeeded. If it is missing now, its data is lost or out of
	// sight (a file system that is not mounted), and Prepare fails with FailedPrecondition rather than begin anew.
	Made bool
}

// BootImage is the root file system image a local disk begins as.
type BootImage struct {
	Path      string // raw image file in the cache
	SizeBytes int64
	Digest    string
}

// Prepared is a volume that can be given to a VMM. Exactly one of Path, RBD and VhostUser is set.
type Prepared struct {
	Handle    string // reported to the client; stable
	Path      string // file or block device
	Format    Format // of a file; empty = raw
	RBD       *RBD
	VhostUser string // socket of a vhost-user-blk server of this volume alone
	Serial    string // at most 20 bytes; see machine.Serial
	SizeBytes int64
	ReadOnly  bool
	Limits    Limits
	// Fixed says that whoever owns the medium alone can resize it, and that a VMM sees the new size only by opening it anew.
	Fixed bool
}

// Format is how a disk's bytes are laid out in its file.
type Format string

// The formats.
const (
	FormatRaw   Format = "raw"
	FormatQcow2 Format = "qcow2"
)

// RBD is an image in a Ceph cluster, for VMMs that are clients of Ceph themselves. It holds secrets: it must not be
// recorded, logged or shown.
type RBD struct {
	Monitors   []string // "host:port"
	Pool       string
	Image      string
	User       string // without the "client." prefix
	Key        string // base64, as in a keyring
	Passphrase string // of the image's LUKS2 encryption; empty = none
}

// Limits bound what a disk does, each in units a second; 0 = no bound.
type Limits struct {
	ReadBytes, WriteBytes, TotalBytes int64
	ReadOps, WriteOps, TotalOps       int64
}

// WantedBytes is the size that is asked for, in bytes; 0 = whatever it is.
func WantedBytes(v machine.Volume) int64 {
	switch {
	case v.LocalDisk != nil:
		return v.LocalDisk.SizeBytes
	case v.Connection != nil:
		return v.Connection.EffectiveStorageBytes
	}
	return 0
}
