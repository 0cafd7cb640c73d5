// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmm

import "context"

// DeviceKind is what sort of device counts.
type DeviceKind string

// The kinds of device that count.
const (
	DiskDevice DeviceKind = "disk"
	NICDevice  DeviceKind = "nic"
)

// DeviceCounters is what a device has done for its guest since the VMM was started. A disk's In is reading and Out is
// writing; a network interface's In is receiving and Out is sending. Ops are requests or frames.
type DeviceCounters struct {
	Kind              DeviceKind
	ID                string // as DeviceID has it
	InBytes, OutBytes uint64
	InOps, OutOps     uint64
}

// Counting is an optional ability of a VM: to tell what its devices have done. Without a running guest the answer is
// empty.
type Counting interface {
	Counters(ctx context.Context) ([]DeviceCounters, error)
}
