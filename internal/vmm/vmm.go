// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package vmm is the seam between reconciling and a virtual machine monitor: one VMM process per machine, started
// on demand and living longer than the daemon. It exists so that the same life cycle holds for every driver. A
// driver must never act on a VMM whose machine UUID it has not just asked for, never silently downgrade what it
// cannot do, and never take "could not ask" for "is gone".
//
// The life of a VMM, step by step, as the reconciler drives it:
//
//	Driver.Prepare   runtime directory, stale sockets removed, command line made; starts nothing; idempotent
//	Supervisor.Start (package process) spawns the command; its identity is recorded
//	Driver.Connect   waits for the control socket, checks the machine UUID if a VM is defined
//	VM.Create        defines the VM; repairs a half-made one; no-op if it is defined already
//	VM.Boot          starts the guest, the first time or after it stopped; no-op while it runs
//	VM.PowerButton / VM.Reset / VM.PowerOff
//	VM.Shutdown      asks the VMM process to end (guest power is cut)
//	Supervisor       kill by proven identity when that does not help
package vmm

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

// Driver makes and reaches virtual machines of one kind of VMM. It holds no state per machine.
type Driver interface {
	// Name is stable and goes into records: "cloud-hypervisor", "qemu".
	Name() string
	Capabilities() Capabilities
	// Validate says why cfg cannot be run by this driver (machine.Invalid or machine.Unimplemented), nil if it can.
	Validate(cfg Config) error
	// Prepare makes what the VMM needs before it starts (runtime directory, config disk, firmware variables; stale
	// sockets of an earlier run removed) and returns the command. It must only be called when no VMM of the machine
	// lives. Marker and Output are filled in by the caller.
	Prepare(ctx context.Context, cfg Config) (process.Spec, error)
	// Connect opens a control connection. It retries until the VMM listens or ctx ends (the caller cancels ctx when
	// the process dies). ErrIdentity if the VM there is another machine's.
	Connect(ctx context.Context, ref Ref) (VM, error)
	// Cleanup removes what Prepare made in the runtime directory. Only after the process is proven gone. Idempotent.
	Cleanup(ctx context.Context, ref Ref) error
}

// Ref finds a machine's VMM; it can be made from the machine id and the configured directories at any time.
type Ref struct {
	MachineID  string
	RuntimeDir string // the machine's own directory for sockets, short enough for sun_path (107 bytes with the name)
	StateDir   string // the machine's own directory on disk
}

// VM is a control connection to one VMM. Methods may be called from several goroutines. Every call honours ctx;
// failures to ask are machine.Unavailable. Methods that change the guest's power or devices ask for the machine
// UUID first and return ErrIdentity when it is another's.
type VM interface {
	Inspect(ctx context.Context) (Observation, error)
	// Create defines the VM. A defined VM that never ran and differs (half-created by an earlier try) is made anew.
	Create(ctx context.Context, cfg Config) error
	// A paused guest goes on.
	Boot(ctx context.Context) error
	// PowerButton presses the guest's power button; no promise that the guest reacts.
	PowerButton(ctx context.Context) error
	// Reset restarts the guest at once, in the same process.
	Reset(ctx context.Context) error
	// PowerOff cuts the guest's power; the process stays and the state becomes Idle. No-op when Idle.
	PowerOff(ctx context.Context) error
	// Shutdown ends the VMM process (cutting the guest's power if it runs). Success means it was asked; the process'
	// end is seen by its supervisor. A lost reply because the process ended is success.
	Shutdown(ctx context.Context) error
	// Events delivers what happens until the connection ends, then is closed. A slow reader never stalls the VMM or
	// other calls: when events had to be dropped one EventResync is delivered instead.
	Events() <-chan Event
	// Console is where the guest's serial console is reached. The socket serves one client at a time.
	Console() Console
	// Close ends the connection and touches nothing else.
	Close() error
}

// GuestAgentDialer is an ability of VMs that were started with Config.GuestAgent, on a driver that claims it.
type GuestAgentDialer interface {
	// DialGuestAgent opens a byte stream to the guest agent, after asking for the machine UUID (ErrIdentity). It is
	// machine.Unavailable when there is no such channel or the guest does not serve it; that it succeeds does not
	// prove that it does. The stream dies with the guest's restart. One at a time: QEMU leaves a second one waiting.
	DialGuestAgent(ctx context.Context) (net.Conn, error)
}

// ErrIdentity means that the VMM asked belongs to another machine. Nothing was changed.
var ErrIdentity = errors.New("the VMM belongs to another machine")

// State is what the VMM says of the guest.
type State string

// The states. A VMM cannot always tell "never booted" from "stopped"; the machine's record can.
const (
	StateEmpty   State = "Empty"   // the process runs, no VM is defined
	StateIdle    State = "Idle"    // defined, guest not running: never booted, powered off, or stopped by itself
	StateRunning State = "Running" // the guest runs (booting and rebooting count)
	StatePaused  State = "Paused"
	StateFailed  State = "Failed" // the guest cannot go on (internal error); Reset or PowerOff+Boot may help
)

// Observation is what a VMM answered just now.
type Observation struct {
	State     State
	MachineID string   // UUID the VM was made with; empty when StateEmpty
	PID       int      // as the VMM tells, 0 if it does not
	Version   string   // of the VMM
	Disks     []string // ids of those that the guest may still use, also while they are leaving; sorted
	NICs      []string // the same
	// Leaving are the ids, of both kinds, that the guest was asked to let go of and still holds, as far as the VMM
	// tells; sorted.
	Leaving []string
	// DiskBytes are the sizes that the VMM shows the guest, in bytes, by id, as far as it tells.
	DiskBytes map[string]int64
	// Problem says why the guest was paused without anybody's wish, such as "disk-data: no space left on the host"; empty
	// otherwise. Boot lets it go on and does the guest's failed requests again; if the cause is still there it is paused
	// at once again.
	Problem string
}

// EventKind is the kind of an event.
type EventKind string

// The kinds of event. They are hints to look again, and carry what looking again cannot show.
const (
	EventBooted        EventKind = "Booted"
	EventGuestStopped  EventKind = "GuestStopped"  // the guest is down, whoever wanted it
	EventGuestReset    EventKind = "GuestReset"    // rebooted in place; console sockets may be new
	EventGuestPanicked EventKind = "GuestPanicked" // the guest's kernel said so
	EventDeviceRemoved EventKind = "DeviceRemoved" // Device has left the guest for good
	EventDeviceKept    EventKind = "DeviceKept"    // the guest refuses to let go of Device
	EventProblem       EventKind = "Problem"       // the VMM paused the guest: see Observation.Problem
	EventResync        EventKind = "Resync"        // events were lost: inspect
)

// Event is something that happened in a VMM.
type Event struct {
	Kind   EventKind
	Device string // for EventDeviceRemoved and EventDeviceKept, and for EventProblem if it is a device's
	Reason string // for a person, may be empty
	At     time.Time
}

// Console is a Unix stream socket that carries the guest's serial console. ReplaysBacklog is true when the VMM
// keeps output while nobody is connected (up to 1 MiB) and sends it to the next client.
type Console struct {
	Socket         string
	ReplaysBacklog bool
}

// Capabilities is what a driver can do on this host.
type Capabilities struct {
	Ignition      []IgnitionTransport // in order of preference
	UserNetwork   bool                // NICKindUser works
	IsolatedNIC   bool                // NICKindIsolated works without a tap
	TapNIC        bool
	DirectKernel  bool
	Firmware      bool // a firmware was found, so a disk alone can boot
	MaxDisks      int
	MaxNICs       int
	HotPlug       bool // VMs are Pluggers
	PCINIC        bool // NICPCI works
	Qcow2         bool // Disk.Format may be FormatQcow2
	RBD           bool // Disk.RBD works
	VhostUserDisk bool // Disk.VhostUser works
	DiskLimits    bool // Disk.Limits are kept
	// Cache says for each path which policy is really in force when one is asked for: never a weaker one. What is
	// missing is refused.
	Cache          map[DiskPath]map[CachePolicy]CachePolicy
	GuestAgent     bool // Config.GuestAgent works, and VMs are GuestAgentDialers
	SMBIOSMaxBytes int  // raw bytes of an Ignition payload by SMBIOS; 0 = not possible
}

// IgnitionTransport is a way in which a guest gets its Ignition payload.
type IgnitionTransport string

// The transports. The SMBIOS one is an OEM string "opt/com.coreos/config=<base64>"; the disk is a read-only FAT
// image labelled IGNITION with one file config.ign.
const (
	IgnitionFWCfg  IgnitionTransport = "fw_cfg"
	IgnitionSMBIOS IgnitionTransport = "smbios"
	IgnitionDisk   IgnitionTransport = "disk"
)
