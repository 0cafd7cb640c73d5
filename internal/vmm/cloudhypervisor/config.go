// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/google/uuid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/configdisk"
)

const (
	// pciSlots are the slots of a segment, less the host bridge's, the random number generator's and the panic
	// device's.
	pciSlots = busSlots - 2
	busSlots = 31
	maxNICs  = 6
	// maxDisks leaves a slot for the config disk, one for the guest agent's vsock device and one to spare.
	maxDisks = pciSlots - maxNICs - 3

	// smbiosMaxBytes keeps the base64 form, with the rest of vm.create, below the 50 KB of a request's body. All
	// SMBIOS data must stay below 64 KiB, above which the guest's firmware is loaded.
	smbiosMaxBytes = 30 << 10
	// oemPrefix is the name under which Ignition's QEMU platform knows its payload.
	oemPrefix = "opt/com.coreos/config="

	maxSerial = 20 // bytes that virtio-blk carries

	// configDiskID and configDiskSerial are those of the Ignition config disk. No volume's disk is called so, as
	// vmm.DeviceID puts "disk-" before its name.
	configDiskID     = "ignition-config"
	configDiskSerial = "ignition"

	// agentID is the id of the vsock device, agentCID the guest's address on it: the first one that is not reserved.
	// Machines may share it, since only the socket's path leads to one.
	agentID  = "guest-agent"
	agentCID = 3
)

// Validate says why cfg cannot be run; see vmm.Driver.
func (d *Driver) Validate(cfg vmm.Config) error {
	if err := d.validateShape(cfg); err != nil {
		return err
	}
	devices := map[string]bool{configDiskID: true, agentID: true}
	for i, disk := range cfg.Disks {
		if err := validateDisk(fmt.Sprintf("disks[%d]", i), disk, devices); err != nil {
			return err
		}
	}
	for i, nic := range cfg.NICs {
		if err := validateNIC(fmt.Sprintf("nics[%d]", i), nic, cfg.CPUs, devices); err != nil {
			return err
		}
	}
	if err := validateFunctions(cfg.NICs); err != nil {
		return err
	}
	if err := d.validateIgnition(cfg.Ignition); err != nil {
		return err
	}
	// Paths and the command line have no limits of their own.
	if size, err := api.BodySize(d.vmConfig(cfg, versionSystemUUID)); err != nil {
		return machine.Errorf(machine.Invalid, "the definition has %d bytes: %w", size, err)
	}
	return nil
}

func (d *Driver) validateShape(cfg vmm.Config) error {
	id, err := uuid.Parse(cfg.MachineID)
	switch {
	case err != nil || id.String() != cfg.MachineID:
		return machine.InvalidField("machineID", "%q is not a UUID in canonical form", cfg.MachineID)
	case cfg.CPUs < 1:
		return machine.InvalidField("cpus", "is %d, must be at least 1", cfg.CPUs)
	case cfg.MemoryBytes < 1:
		return machine.InvalidField("memoryBytes", "is %d, must be positive", cfg.MemoryBytes)
	case len(cfg.Disks) > maxDisks:
		return machine.InvalidField("disks", "are %d, at most %d are possible", len(cfg.Disks), maxDisks)
	case len(cfg.NICs) > maxNICs:
		return machine.InvalidField("nics", "are %d, at most %d are possible", len(cfg.NICs), maxNICs)
	case cfg.Boot.Kernel != "" && !filepath.IsAbs(cfg.Boot.Kernel):
		return machine.InvalidField("boot.kernel", "%q is not an absolute path", cfg.Boot.Kernel)
	case cfg.Boot.Initramfs != "" && !filepath.IsAbs(cfg.Boot.Initramfs):
		return machine.InvalidField("boot.initramfs", "%q is not an absolute path", cfg.Boot.Initramfs)
	case cfg.Boot.Kernel == "" && (cfg.Boot.Initramfs != "" || cfg.Boot.CommandLine != ""):
		return machine.InvalidField("boot", "has an initramfs or a command line but no kernel")
	case cfg.Boot.Kernel == "" && d.opts.Firmware == "":
		return machine.Errorf(machine.Unimplemented, "boot: no kernel is given and no firmware for Cloud Hypervisor was found, which booting from a disk needs")
	case cfg.Boot.Kernel == "" && len(cfg.Disks) == 0:
		return machine.InvalidField("boot", "there is neither a kernel nor a disk to boot from")
	}
	return nil
}

// validateID also keeps off the ids that the VMM reserves, and sees to it that an id tells what it is of.
func validateID(field, id string, c deviceClass, seen map[string]bool) error {
	switch {
	case !c.owns(id):
		return machine.InvalidField(field+".id", "%q does not begin with %q", id, vmm.DeviceID(string(c), ""))
	case seen[id]:
		return machine.InvalidField(field+".id", "%q is not unique in the machine", id)
	}
	seen[id] = true
	return nil
}

func (d *Driver) validateIgnition(ign *vmm.Ignition) error {
	if ign == nil {
		return nil
	}
	const field = "ignition"
	switch ign.Transport {
	case vmm.IgnitionSMBIOS:
		if d.opts.Arch != archAMD64 {
			return machine.Errorf(machine.Unimplemented, "%s: Cloud Hypervisor shows a guest SMBIOS strings on %s only, this is %s; use a config disk", field, archAMD64, d.opts.Arch)
		}
		if len(ign.Data) > smbiosMaxBytes {
			return machine.InvalidField(field, "has %d bytes, at most %d go by SMBIOS; use a config disk", len(ign.Data), smbiosMaxBytes)
		}
	case vmm.IgnitionDisk:
		if len(ign.Data) > configdisk.MaxPayload {
			return machine.InvalidField(field, "has %d bytes, at most %d go by config disk", len(ign.Data), configdisk.MaxPayload)
		}
	default:
		return machine.Errorf(machine.Unimplemented, "%s: Cloud Hypervisor has no transport %q", field, ign.Transport)
	}
	return nil
}

// vmConfig is the definition of the machine for a VMM of the major version.
func (d *Driver) vmConfig(cfg vmm.Config, major int) api.VMConfig {
	p := pathsOf(cfg.Ref)
	c := api.VMConfig{
		CPUs:     api.CPUs{Boot: cfg.CPUs, Max: cfg.CPUs},
		Memory:   api.Memory{Size: cfg.MemoryBytes, Shared: d.opts.SharedMemory},
		Payload:  d.payload(cfg.Boot),
		RNG:      &api.RNG{Src: "/dev/urandom"},
		Serial:   &api.Serial{Mode: api.ConsoleSocket, Socket: p.serial},
		Console:  &api.Console{Mode: api.ConsoleOff},
		Platform: platform(cfg, major),
		PVPanic:  true,
	}
	for _, disk := range cfg.Disks {
		c.Disks = append(c.Disks, diskOf(disk))
		c.Memory.Shared = c.Memory.Shared || disk.VhostUser != ""
	}
	if cfg.Ignition != nil && cfg.Ignition.Transport == vmm.IgnitionDisk {
		// Last, so that the guest's own disks keep their order.
		c.Disks = append(c.Disks, api.Disk{
			ID: configDiskID, Path: p.disk, ReadOnly: true, Serial: configDiskSerial, ImageType: api.ImageTypeRaw,
		})
	}
	for _, nic := range cfg.NICs {
		if nic.Kind == vmm.NICPCI {
			c.Devices = append(c.Devices, functionOf(nic))
		} else {
			c.Net = append(c.Net, netOf(nic))
		}
	}
	if cfg.GuestAgent {
		c.Vsock = &api.Vsock{ID: agentID, CID: agentCID, Socket: p.vsock}
	}
	if d.opts.Landlock {
		c.LandlockEnable = true
		// The runtime directory, since the serial socket is made anew when the guest restarts.
		paths := append([]string{cfg.RuntimeDir}, d.opts.LandlockPaths...)
		if len(c.Devices) > 0 {
			paths = append(paths, vfioDir) // the VMM's own rules do not cover it
		}
		for _, path := range paths {
			c.LandlockRules = append(c.LandlockRules, api.LandlockRule{Path: path, Access: "rw"})
		}
	}
	return c
}

func (d *Driver) payload(b vmm.Boot) *api.Payload {
	if b.Kernel == "" {
		return &api.Payload{Firmware: d.opts.Firmware}
	}
	return &api.Payload{Kernel: b.Kernel, Initramfs: b.Initramfs, CmdLine: b.CommandLine}
}

func platform(cfg vmm.Config, major int) *api.Platform {
	p := &api.Platform{}
	if major >= versionSystemUUID {
		p.SystemUUID = cfg.MachineID
	} else {
		p.UUID = cfg.MachineID
	}
	if cfg.Ignition != nil && cfg.Ignition.Transport == vmm.IgnitionSMBIOS {
		p.OEMStrings = []string{oemPrefix + base64.StdEncoding.EncodeToString(cfg.Ignition.Data)}
	}
	return p
}

// sameDefinition compares what vmConfig sets with what a VMM says it has. A config disk is compared by its path, a
// network interface whose tap was passed as a descriptor by its MAC and queues: see sameTaps.
func sameDefinition(want, have api.VMConfig) bool {
	a, b := canonical(want), canonical(have)
	if len(a.Net) != len(b.Net) {
		return false
	}
	for i := range b.Net {
		if b.Net[i].FDs != nil {
			a.Net[i].Tap, b.Net[i].FDs = "", nil
		}
	}
	return reflect.DeepEqual(a, b)
}

// canonical gives the UUID one name and makes no difference between none and nothing.
func canonical(c api.VMConfig) api.VMConfig {
	p := api.Platform{SystemUUID: strings.ToLower(c.MachineUUID())}
	if c.Platform != nil && len(c.Platform.OEMStrings) > 0 {
		p.OEMStrings = c.Platform.OEMStrings
	}
	c.Platform = &p
	c.Disks = append([]api.Disk{}, c.Disks...)
	c.Net = append([]api.Net{}, c.Net...)
	c.Devices = append([]api.Device{}, c.Devices...)
	c.LandlockRules = append([]api.LandlockRule{}, c.LandlockRules...)
	return c
}
