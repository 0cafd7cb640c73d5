// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package macvtap connects VMMs to taps whose other end a program of the host holds. It exists because the data plane
// of ironcore-net makes its taps for itself: what is sent into such a device arrives there, but a VMM that opened it
// would take the data plane's place. A macvtap on top of it gives the VMM an end of its own.
//
// It works in the daemon's network namespace and needs CAP_NET_ADMIN. It must never change the device below, and never
// change or remove a device of another owner.
package macvtap

import (
	"errors"
	"fmt"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
)

// Errors to look for with errors.Is.
var (
	// ErrNoDevice says that the device that was named does not exist.
	ErrNoDevice = errors.New("there is no such network device")
	// ErrNotOwner says that a device of the name exists and belongs to somebody else.
	ErrNotOwner = tap.ErrNotOwner
)

// Kernel makes macvtaps. The zero value is ready for use.
type Kernel struct{}

// owner is the mark in a device's alias, where "ip link" shows it.
func owner(scheme string, ref network.Ref) string { return fmt.Sprintf("%s://%s", scheme, ref) }
