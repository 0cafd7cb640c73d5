// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api

// Ping is the answer of GET vmm.ping.
type Ping struct {
	BuildVersion string   `json:"build_version"`
	Version      string   `json:"version"` // "53.0.0"
	PID          int      `json:"pid"`     // of the VMM, in its own pid namespace
	Features     []string `json:"features"`
}

// State is the state of a VM as vm.info spells it. A VM that was shut down, by whomever, reads Created again.
type State string

// The states.
const (
	StateCreated    State = "Created"
	StateRunning    State = "Running"
	StateShutdown   State = "Shutdown" // in the source, never seen over the API
	StatePaused     State = "Paused"
	StateBreakPoint State = "BreakPoint" // stopped by a debugger
)

// Info is the answer of GET vm.info.
type Info struct {
	Config           VMConfig              `json:"config"`
	State            State                 `json:"state"`
	MemoryActualSize uint64                `json:"memory_actual_size"` // bytes
	DeviceTree       map[string]DeviceNode `json:"device_tree"`        // absent before the first boot
}

// DeviceNode is an entry of the device tree. A virtio device has two: its own and one of its PCI parent, whose id
// has the prefix "_virtio-pci-".
type DeviceNode struct {
	ID     string  `json:"id"`
	Parent *string `json:"parent"`
	PCIBDF *string `json:"pci_bdf"`
}

// Counters maps a device's id to its counters. A counter that does not apply holds the greatest uint64.
type Counters map[string]map[string]uint64

// PCIDevice is the answer to a hot-plugged device.
type PCIDevice struct {
	ID  string `json:"id"`
	BDF string `json:"bdf"`
}

// VMConfig is the body of PUT vm.create and part of vm.info. It holds the fields that this module sets or reads;
// the server fills in its defaults for the rest.
type VMConfig struct {
	CPUs           CPUs           `json:"cpus"`
	Memory         Memory         `json:"memory"`
	Payload        *Payload       `json:"payload,omitempty"`
	Disks          []Disk         `json:"disks,omitempty"`
	Net            []Net          `json:"net,omitempty"`
	Devices        []Device       `json:"devices,omitempty"`
	RNG            *RNG           `json:"rng,omitempty"`
	Serial         *Serial        `json:"serial,omitempty"`
	Console        *Console       `json:"console,omitempty"`
	Vsock          *Vsock         `json:"vsock,omitempty"`
	Platform       *Platform      `json:"platform,omitempty"`
	PVPanic        bool           `json:"pvpanic"`
	LandlockEnable bool           `json:"landlock_enable,omitempty"`
	LandlockRules  []LandlockRule `json:"landlock_rules,omitempty"`
}

// CPUs are the virtual processors. Both counts are required.
type CPUs struct {
	Boot int64 `json:"boot_vcpus"`
	Max  int64 `json:"max_vcpus"`
}

// Memory is the guest's memory.
type Memory struct {
	Size   int64 `json:"size"`             // bytes
	Shared bool  `json:"shared,omitempty"` // needed by vhost-user devices alone
}

// Payload is what boots: Firmware, or Kernel with the other two.
type Payload struct {
	Firmware  string `json:"firmware,omitempty"`
	Kernel    string `json:"kernel,omitempty"`
	CmdLine   string `json:"cmdline,omitempty"`
	Initramfs string `json:"initramfs,omitempty"`
}

// The types of images. One is always given: the server refuses guests' writes to the first sector of an image that it
// had to recognise as raw by itself.
const (
	ImageTypeRaw   = "Raw"
	ImageTypeQcow2 = "Qcow2"
)

// Disk is a block device: a file or block device at Path, or one that another process serves at VhostSocket.
type Disk struct {
	ID        string `json:"id,omitempty"`
	Path      string `json:"path,omitempty"`
	ReadOnly  bool   `json:"readonly"`
	Direct    bool   `json:"direct,omitempty"` // O_DIRECT, and nothing else
	Serial    string `json:"serial,omitempty"` // at most 20 bytes
	ImageType string `json:"image_type,omitempty"`
	// BackingFiles lets a qcow2 image name another file below it, by any path.
	BackingFiles bool         `json:"backing_files,omitempty"`
	VhostUser    bool         `json:"vhost_user,omitempty"`
	VhostSocket  string       `json:"vhost_socket,omitempty"`
	RateLimiter  *RateLimiter `json:"rate_limiter_config,omitempty"` // refused with VhostUser
}

// RateLimiter bounds reads and writes together, in bytes and in requests. A nil bucket is no bound.
type RateLimiter struct {
	Bandwidth *TokenBucket `json:"bandwidth,omitempty"`
	Ops       *TokenBucket `json:"ops,omitempty"`
}

// TokenBucket holds Size tokens and is full again after RefillTime milliseconds.
type TokenBucket struct {
	Size       int64 `json:"size"`
	RefillTime int64 `json:"refill_time"`
}

// Net is a network interface on a tap device that exists already: the one called Tap, or those whose descriptors go
// with AddNet.
type Net struct {
	ID        string `json:"id,omitempty"`
	Tap       string `json:"tap,omitempty"`
	MAC       string `json:"mac,omitempty"`
	NumQueues int    `json:"num_queues,omitempty"` // two for each pair
	// FDs are the server's own numbers of the descriptors. It tells them and must never be told any: without
	// descriptors beside the request it takes numbers as the wish for a tap of its own making.
	FDs []int `json:"fds,omitempty"`
}

// Device is a function of the host's PCI bus, by VFIO.
type Device struct {
	ID   string `json:"id,omitempty"`
	Path string `json:"path,omitempty"` // below /sys/bus/pci/devices
}

// RNG is the source of the guest's randomness.
type RNG struct {
	Src string `json:"src"`
}

// ConsoleMode says where a console leads.
type ConsoleMode string

// The modes that this module uses. The server knows more.
const (
	ConsoleOff    ConsoleMode = "Off"
	ConsoleSocket ConsoleMode = "Socket" // for Serial alone
)

// Serial is the serial console.
type Serial struct {
	Mode   ConsoleMode `json:"mode"`
	Socket string      `json:"socket,omitempty"`
}

// Console is the virtio console.
type Console struct {
	Mode ConsoleMode `json:"mode"`
}

// Vsock is the hybrid vsock device. Its socket is made at each boot with mode 0600 and removed when the guest stops.
type Vsock struct {
	ID     string `json:"id,omitempty"`
	CID    uint32 `json:"cid"` // above 2
	Socket string `json:"socket"`
}

// Platform is what the guest is told about its hardware. The UUID goes by one of two names: UUID up to v52,
// SystemUUID from v53 on, which refuses a request that has both. On other architectures than x86_64 the server
// keeps these values without showing them to the guest.
type Platform struct {
	UUID       string   `json:"uuid,omitempty"`
	SystemUUID string   `json:"system_uuid,omitempty"`
	OEMStrings []string `json:"oem_strings,omitempty"`
}

// MachineUUID returns the UUID of the platform, under whichever name it came, or "".
func (c VMConfig) MachineUUID() string {
	switch {
	case c.Platform == nil:
		return ""
	case c.Platform.SystemUUID != "":
		return c.Platform.SystemUUID
	}
	return c.Platform.UUID
}

// LandlockRule lets the VMM reach a path.
type LandlockRule struct {
	Path   string `json:"path"`
	Access string `json:"access"` // "r", "w" or "rw"
}
