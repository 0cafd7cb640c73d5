// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package network is the seam between reconciling and whatever connects a machine's network interfaces. It exists
// so that a new kind of network is one package. A plugin must never wait inside a call for something that an event
// could tell (not ready is a state, not an error), and never remove what it cannot prove to be the machine's.
package network

import (
	"context"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// Plugin provides network interfaces. Calls for one interface are never concurrent.
type Plugin interface {
	// Name is stable and goes into records.
	Name() string
	// Validate checks what can be known without acting; machine.Invalid errors name the field below "field".
	Validate(field string, nic machine.NetworkInterface) error
	// Apply makes the interface what it should be and says how it is. Idempotent and quick.
	Apply(ctx context.Context, req Request) (Result, error)
	// Delete removes what Apply made; nil if there is nothing. Only after the VMM let go.
	Delete(ctx context.Context, req Request) error
}

// Request names one network interface of one machine.
type Request struct {
	MachineID string
	NIC       machine.NetworkInterface
	Hostname  string
}

// Result is how a network interface is.
type Result struct {
	Ready    bool
	Reason   string // why it is not ready
	Handle   string // reported to the client; stable, never empty once ready
	MAC      string
	Backend  Backend
	Tap      string    // interface name, for BackendTap
	Forwards []Forward // for BackendUser
}

// Backend is what the VMM is to connect the interface to.
type Backend string

// The back ends; they mean the same as the NIC kinds of package vmm.
const (
	BackendIsolated Backend = "isolated"
	BackendUser     Backend = "user"
	BackendTap      Backend = "tap"
)

// Forward leads a TCP port of the host to one of the guest.
type Forward struct {
	HostAddress string
	HostPort    int
	GuestPort   int
}
