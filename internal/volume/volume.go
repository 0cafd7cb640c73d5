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
	// Prepare makes the volume ready to be given to a VMM. Idempotent: it finishes what an earlier, killed call
	// began, and a finished volume is returned as it is (grown when a larger size is asked for; never shrunk).
	Prepare(ctx context.Context, req Request) (Prepared, error)
	// Delete removes the volume and everything Prepare made; nil if there is nothing. Only after the VMM let go.
	Delete(ctx context.Context, req Request) error
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

// Prepared is a volume that can be given to a VMM.
type Prepared struct {
	Handle    string // reported to the client; stable
	Path      string // file or block device, raw format
	Serial    string // at most 20 bytes; see machine.Serial
	SizeBytes int64
	ReadOnly  bool
}
