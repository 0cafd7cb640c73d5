// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmm

// Config is a whole virtual machine, as it should be at the next boot.
type Config struct {
	Ref
	CPUs        int64
	MemoryBytes int64
	Boot        Boot
	Disks       []Disk // in the guest's order; the first one is the boot disk
	NICs        []NIC  // in the guest's order
	Ignition    *Ignition
	Hostname    string // a hint (SMBIOS family or nothing); may be empty
	// GuestAgent gives the guest a channel for the QEMU guest agent: the virtio-serial port org.qemu.guest_agent.0
	// with QEMU, a vsock device with Cloud Hypervisor. A VMM that was started without it gets it with a new process.
	GuestAgent bool
}

// Boot says how the guest starts: by Kernel when set, else by the driver's firmware from the first disk.
type Boot struct {
	Kernel      string // path
	Initramfs   string // path, may be empty
	CommandLine string
}

// Disk is a block device. Exactly one of Path, RBD and VhostUser is set.
type Disk struct {
	ID        string // unique in the machine, derived from the volume's name by DeviceID
	Path      string // file or block device
	RBD       *RBD
	VhostUser string     // socket of a vhost-user-blk server
	Format    DiskFormat // of a file; empty = raw
	Serial    string     // at most 20 bytes
	ReadOnly  bool
	Cache     CachePolicy // empty = the driver's default for the path, which keeps what the guest flushed
	Limits    IOLimits
}

// NICKind is what a network interface hangs on.
type NICKind string

// The kinds.
const (
	NICIsolated NICKind = "isolated" // exists in the guest, leads nowhere, needs no privilege
	NICUser     NICKind = "user"     // user-mode network stack of the VMM, with port forwards
	NICTap      NICKind = "tap"      // a tap device that exists already
	NICPCI      NICKind = "pci"      // a function of the host's PCI bus, bound to vfio-pci already
)

// NIC is a network interface.
type NIC struct {
	ID       string // unique in the machine, derived from its name by DeviceID
	MAC      string
	Kind     NICKind
	Tap      string        // interface name, for NICTap
	Queues   int           // pairs of queues of the tap; 0 = one, on a tap without IFF_MULTI_QUEUE
	MTU      int           // told to the guest; 0 = 1500
	PCI      string        // "0000:3b:02.1", for NICPCI
	Forwards []PortForward // for NICUser
}

// PortForward leads a TCP port of the host to one of the guest.
type PortForward struct {
	HostAddress string // "127.0.0.1"
	HostPort    int    // 0 = any free one
	GuestPort   int
}

// Ignition is the payload and the way it goes.
type Ignition struct {
	Transport IgnitionTransport
	Data      []byte
}

// DeviceID makes the identifier of a device from its kind ("disk", "nic") and the name in the machine's spec. Names
// hold [a-z0-9.-] and at most 63 characters (machine.ValidateName); QEMU limits node names to 31 bytes and refuses
// some characters, so what does not fit is shortened with a hash that keeps it unique.
func DeviceID(kind, name string) string { return deviceID(kind, name) }
