// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package qemu drives virtual machines with QEMU: the driver for development,
// for macOS and for servers without Cloud Hypervisor.
//
// It exists so that everything above the seam in package vmm runs and is
// tested wherever QEMU does, with KVM, HVF or no virtualisation at all. Machine
// q35 on x86-64 and virt on arm64; the guest's hardware is laid out so that
// disks and network interfaces can come and go while it runs.
//
// A machine is defined by QEMU's command line, so VM.Create has only to check
// it, and to mend the devices of one that was started for an older wish. The
// process starts with -S (nothing runs before VM.Boot) and -no-shutdown (a
// guest that powers off leaves its state readable and can be booted again in
// place), which gives it the life cycle of the other driver.
//
// Network interfaces: "isolated" is a virtio-net device without any back end:
// the guest sees a link, what it sends is dropped inside QEMU at once, no
// privilege and no host resource is involved. "user" is QEMU's user-mode
// stack with port forwards; guests reach the host's loopback through it, so it
// is for development only. "tap" takes a tap device that exists already.
//
// The package must never probe for accelerators (package host does), never
// reuse a disk that another process has locked, and never touch the files of a
// machine beyond its two directories.
package qemu

import (
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// DriverName is how records name this driver.
const DriverName = "qemu"

// Accelerators, as QEMU spells them.
const (
	KVM = "kvm"
	HVF = "hvf"
	TCG = "tcg"
)

// Limits of a machine. The sum of devices bounds the number of root ports:
// eight share a PCI slot, so forty take five of the thirty slots of the bus.
const (
	MaxDisks = 32
	MaxNICs  = 8
	// DefaultHotplugPorts is how many disks and network interfaces a machine
	// has room for when it starts with fewer. Under TCG sixteen ports cost a Linux
	// guest about half a second of its boot.
	DefaultHotplugPorts = 16
	// sparePorts stay free at start whatever the machine begins with.
	sparePorts = 4
	maxSerial  = 20 // bytes, VIRTIO_BLK_ID_BYTES
	maxCPUs    = 255
	mib        = 1 << 20
)

// Firmware is what a guest without a kernel of its own starts from. The zero
// value means the firmware built into QEMU (SeaBIOS), which exists on x86-64
// only. Either BIOS or Code and Vars may be set.
type Firmware struct {
	Code string // UEFI image for the first flash, shared and read-only
	Vars string // template of the UEFI variables; each machine gets a copy
	BIOS string // image passed with -bios
}

// Options configures a Driver.
type Options struct {
	// Binary is the QEMU system emulator; a path or a name in PATH.
	Binary string
	// Architecture is the guest's, "amd64" or "arm64"; default the host's.
	Architecture string
	// Accelerator is KVM, HVF or TCG. It must be known to work.
	Accelerator string
	Firmware    Firmware
	// CPU overrides the CPU model; default "host" with KVM and HVF, "max" with TCG.
	CPU string
	// HotplugPorts is DefaultHotplugPorts when zero; at most MaxDisks + MaxNICs.
	HotplugPorts int
}

// Driver implements vmm.Driver.
type Driver struct {
	o Options
}

var _ vmm.Driver = (*Driver)(nil)

// New returns a driver. It starts and probes nothing.
func New(o Options) (*Driver, error) {
	if o.Architecture == "" {
		o.Architecture = runtime.GOARCH
	}
	if o.HotplugPorts == 0 {
		o.HotplugPorts = DefaultHotplugPorts
	}
	switch {
	case o.Binary == "":
		return nil, machine.Errorf(machine.Invalid, "no QEMU binary given")
	case o.Architecture != "amd64" && o.Architecture != "arm64":
		return nil, machine.Errorf(machine.Unimplemented, "guests of architecture %q are not possible", o.Architecture)
	case !slices.Contains([]string{KVM, HVF, TCG}, o.Accelerator):
		return nil, machine.Errorf(machine.Invalid, "unknown accelerator %q, want kvm, hvf or tcg", o.Accelerator)
	case o.HotplugPorts < 0 || o.HotplugPorts > MaxDisks+MaxNICs:
		return nil, machine.Errorf(machine.Invalid, "%d hot-plug ports, want 1 to %d", o.HotplugPorts, MaxDisks+MaxNICs)
	case (o.Firmware.Code == "") != (o.Firmware.Vars == ""):
		return nil, machine.Errorf(machine.Invalid, "UEFI firmware needs both the code and the variables image")
	case o.Firmware.Code != "" && o.Firmware.BIOS != "":
		return nil, machine.Errorf(machine.Invalid, "both UEFI and BIOS firmware given")
	}
	if o.CPU == "" {
		o.CPU = "host"
		if o.Accelerator == TCG {
			o.CPU = "max"
		}
	}
	return &Driver{o: o}, nil
}

// Name is DriverName.
func (d *Driver) Name() string { return DriverName }

// Capabilities says what this driver can do.
func (d *Driver) Capabilities() vmm.Capabilities {
	linux := runtime.GOOS == "linux"
	return vmm.Capabilities{
		Ignition:      []vmm.IgnitionTransport{vmm.IgnitionFWCfg},
		UserNetwork:   true,
		IsolatedNIC:   true,
		GuestAgent:    true,
		TapNIC:        linux,
		DirectKernel:  true,
		Firmware:      d.hasFirmware(),
		MaxDisks:      MaxDisks,
		MaxNICs:       MaxNICs,
		HotPlug:       true,
		PCINIC:        linux,
		Qcow2:         true,
		RBD:           linux,
		VhostUserDisk: linux,
		DiskLimits:    true,
		Cache:         cachePolicies(),
	}
}

func (d *Driver) hasFirmware() bool {
	return d.o.Architecture == "amd64" || d.o.Firmware != Firmware{}
}

// Validate says why cfg cannot be run.
func (d *Driver) Validate(cfg vmm.Config) error {
	id, err := uuid.Parse(cfg.MachineID)
	if err != nil || id.String() != cfg.MachineID {
		return machine.Errorf(machine.Invalid, "machine id %q is not a UUID in canonical form", cfg.MachineID)
	}
	if err := validateRef(cfg.Ref); err != nil {
		return err
	}
	switch {
	case cfg.CPUs < 1 || cfg.CPUs > maxCPUs:
		return machine.Errorf(machine.Invalid, "%d CPUs, want 1 to %d", cfg.CPUs, maxCPUs)
	case cfg.MemoryBytes < mib || cfg.MemoryBytes%mib != 0:
		return machine.Errorf(machine.Invalid, "%d bytes of memory, want a positive multiple of 1 MiB", cfg.MemoryBytes)
	case cfg.Boot.Kernel == "" && cfg.Boot.Initramfs != "":
		return machine.Errorf(machine.Invalid, "an initramfs without a kernel")
	case cfg.Boot.Kernel == "" && !d.hasFirmware():
		return machine.Errorf(machine.Unimplemented, "no firmware for %s guests; the image has no kernel", d.o.Architecture)
	case cfg.Boot.Kernel == "" && len(cfg.Disks) == 0:
		return machine.Errorf(machine.Invalid, "neither a kernel nor a disk to boot from")
	case len(cfg.Disks) > MaxDisks:
		return machine.Errorf(machine.Invalid, "%d disks, at most %d are possible", len(cfg.Disks), MaxDisks)
	case len(cfg.NICs) > MaxNICs:
		return machine.Errorf(machine.Invalid, "%d network interfaces, at most %d are possible", len(cfg.NICs), MaxNICs)
	}
	if ign := cfg.Ignition; ign != nil {
		if ign.Transport != vmm.IgnitionFWCfg {
			return machine.Errorf(machine.Unimplemented, "Ignition by %s is not possible with QEMU", ign.Transport)
		}
		if len(ign.Data) > vmm.MaxIgnitionFWCfg {
			return machine.Errorf(machine.Invalid, "Ignition payload of %d bytes, at most %d", len(ign.Data), vmm.MaxIgnitionFWCfg)
		}
	}
	return validateDevices(cfg)
}

func validateRef(ref vmm.Ref) error {
	for _, dir := range []string{ref.RuntimeDir, ref.StateDir} {
		if !filepath.IsAbs(dir) {
			return machine.Errorf(machine.Invalid, "machine directory %q is not absolute", dir)
		}
	}
	longest := filepath.Join(ref.RuntimeDir, operatorSocket)
	if len(longest) > sunPath() {
		return machine.Errorf(machine.Invalid, "socket path %q has %d bytes, at most %d are possible", longest, len(longest), sunPath())
	}
	return nil
}

// sunPath is the longest path of a Unix socket, without the closing NUL.
func sunPath() int {
	if runtime.GOOS == "linux" {
		return 107
	}
	return 103
}

func validateDevices(cfg vmm.Config) error {
	seen := map[string]bool{}
	once := func(id string, err error) error {
		if err == nil && seen[id] {
			return machine.Errorf(machine.Invalid, "device id %q is used twice", id)
		}
		seen[id] = true
		return err
	}
	for _, disk := range cfg.Disks {
		if err := once(disk.ID, validateDisk(disk)); err != nil {
			return err
		}
	}
	for _, nic := range cfg.NICs {
		if err := once(nic.ID, validateNIC(nic)); err != nil {
			return err
		}
	}
	return nil
}

// maxID is the length of a block node name (31) less our prefix.
const maxID = 29

// validID accepts what QEMU accepts as an id, less what it may generate itself.
func validID(id string) bool {
	if id == "" || len(id) > maxID || strings.HasPrefix(id, portPrefix) {
		return false
	}
	for i, r := range id {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || !strings.ContainsRune("0123456789-_.", r)) {
			return false
		}
	}
	return true
}
