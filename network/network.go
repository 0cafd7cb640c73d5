// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package network is the seam between a provider of virtual machines and whatever connects their network interfaces.
// It exists so that a new kind of network is one package, and so that any provider can use it: it knows nothing of a
// hypervisor, of this daemon, or of its other packages. A plugin must never wait inside a call for something that an
// event could tell (not ready is a state, not an error), and never remove what it cannot prove to be the machine's.
package network

import (
	"context"
	"fmt"
)

// Plugin provides network interfaces of one kind. Calls for one interface are never concurrent; calls for different
// ones are. Every call is quick and honours its context: what takes time goes on by itself and is told by an event.
type Plugin interface {
	// Name is stable and goes into records.
	Name() string
	// Validate checks what can be known without acting, for a whole machine: what a single interface cannot be, and
	// what two of them cannot be together. The error is a *FieldError.
	Validate(machineID string, nics []Interface) error
	// Identity is equal for two definitions of an interface if a guest can go from one to the other without its device
	// being taken out and put in again: Apply then suffices.
	Identity(nic Interface) string
	// Apply makes the interface what it should be and says how it is. Idempotent. What Apply was told before and
	// differs is replaced.
	Apply(ctx context.Context, req Request) (Result, error)
	// Observe says how an interface is and changes nothing; StateAbsent if there is none.
	Observe(ctx context.Context, ref Ref) (Result, error)
	// Delete begins to remove what Apply made, and returns what is left: StateAbsent once nothing is. It is called
	// again after an event or a while otherwise. Only after the VMM let go of it.
	Delete(ctx context.Context, ref Ref) (Result, error)
	// List returns every interface that this plugin made on this host for any machine, also those of which no machine
	// is known any more. What it cannot prove to have made is not listed.
	List(ctx context.Context) ([]Ref, error)
	// Events tells of interfaces that may have changed, until ctx ends; then the channel is closed. Events are hints to
	// look again, may be merged, and never wait for a slow reader. Nil if nothing ever changes by itself.
	Events(ctx context.Context) <-chan Ref
}

// Interface is one wanted network interface.
type Interface struct {
	Name       string // unique in the machine, a DNS label
	NetworkID  string // which network; its form is the plugin's
	IPs        []string
	Attributes map[string]string
}

// Ref names one interface of one machine.
type Ref struct {
	MachineID string
	Name      string
}

// String is "machine/name".
func (r Ref) String() string { return r.MachineID + "/" + r.Name }

// Request says what an interface should be.
type Request struct {
	MachineID string
	Interface Interface
	MAC       string // what the guest will see unless Result.MAC says otherwise
	Hostname  string // of the guest; may be empty
	Queues    int    // pairs of queues that the guest can use, at least 1
}

// Ref names the interface.
func (r Request) Ref() Ref { return Ref{MachineID: r.MachineID, Name: r.Interface.Name} }

// State is how far an interface is.
type State string

// The states.
const (
	StateAbsent  State = "Absent"  // nothing of it exists
	StatePending State = "Pending" // on its way; an event will tell
	StateReady   State = "Ready"   // a VMM can connect to it
	StateFailed  State = "Failed"  // will not become ready by itself; Reason says why. An event tells when it changed
	StateLeaving State = "Leaving" // being removed; an event will tell
)

// Result is how a network interface is.
type Result struct {
	State  State
	Reason string // CamelCase, for StatePending, StateFailed and StateLeaving, such as "BridgeMissing"
	// Message says the same for a person; no secrets.
	Message string
	Handle  string // reported to the client; stable, never empty once ready
	MAC     string
	Backend Backend

	Tap      string    // interface name in the daemon's network namespace, for BackendTap
	Queues   int       // pairs of queues of the tap; 0 = one, without IFF_MULTI_QUEUE
	MTU      int       // of the tap, for BackendTap; 0 = 1500
	PCI      string    // address "0000:3b:02.1", for BackendPCI
	Forwards []Forward // for BackendUser
}

// Backend is what the VMM is to connect the interface to.
type Backend string

// The back ends.
const (
	BackendIsolated Backend = "isolated" // the VMM makes an interface that leads nowhere
	BackendUser     Backend = "user"     // the VMM's own user-mode network
	BackendTap      Backend = "tap"      // a persistent tap
	BackendPCI      Backend = "pci"      // a function of the host's PCI bus, given to the guest by VFIO
)

// Forward leads a TCP port of the host to one of the guest.
type Forward struct {
	HostAddress string
	HostPort    int // 0 = any free one
	GuestPort   int
}

// FieldError says which part of a definition can never work.
type FieldError struct {
	Index   int    // of the interface
	Field   string // of Interface, such as "network_id" or "ips[1]"; empty = the interface as a whole
	Message string
}

// Error returns place and message.
func (e *FieldError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("network_interfaces[%d]: %s", e.Index, e.Message)
	}
	return fmt.Sprintf("network_interfaces[%d].%s: %s", e.Index, e.Field, e.Message)
}
