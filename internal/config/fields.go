// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
)

// Field is one row of the table that drives loading, flags, explain and the documentation.
type Field struct {
	// Path is the dotted path in the document.
	Path string
	// Flag is the flag's name without dashes. Most follow from the path; libvirt-provider's name is
	// taken where the meaning is the same.
	Flag    string
	Aliases []Alias
	Type    Type
	// Allowed is the closed list of values; empty when the type alone decides.
	Allowed []string
	// Limits says in words what the type alone does not.
	Limits string
	// Empty says what an empty value means; without it, an empty value is an error.
	Empty string
	// Doc is one sentence for an operator.
	Doc string
	// Since is the first version of the document with this field.
	Since string

	codec codec
}

// Alias is another name of a flag, taken from another provider so that its command lines keep working.
type Alias struct {
	Name string
	// Values maps the other provider's values to ours; nil means that they are the same.
	Values map[string]string
}

const v1alpha1 = "v1alpha1"

// Fields returns the table in the document's order.
func Fields() []Field {
	fields := slices.Concat(
		directoryFields(), hypervisorFields(), classFields(), capacityFields(),
		networkFields(), apinetFields(), volumeFields(), imageFields(), workFields(), surfaceFields(),
	)
	for i := range fields {
		if fields[i].Flag == "" {
			fields[i].Flag = kebab(fields[i].Path)
		}
		fields[i].Since = v1alpha1
	}
	return fields
}

func directoryFields() []Field {
	return []Field{
		{
			Path: "stateDir", Type: TypePath, Aliases: []Alias{{Name: "provider-root-dir"}},
			Doc:   "Directory for everything that must survive a reboot: machine records, disks, images, console logs. One daemon per directory.",
			codec: text(func(c *Config) *string { return &c.StateDir }, needed(absolute)),
		},
		{
			Path: "runtimeDir", Type: TypePath, Limits: "at most 51 bytes",
			Doc:   "Directory for sockets and process files; it may vanish at reboot.",
			codec: text(func(c *Config) *string { return &c.RuntimeDir }, needed(runtimeDir)),
		},
		{
			Path: "iri.address", Flag: "address", Type: TypePath, Limits: "at most 107 bytes",
			Doc:   "Unix socket on which the IRI machine runtime is served.",
			codec: text(func(c *Config) *string { return &c.IRI.Address }, needed(socketPath)),
		},
		{
			Path: "iri.group", Flag: "address-group", Type: TypeString, Limits: "group name or number", Empty: "the daemon's own group",
			Doc:   "Group that may use the IRI socket, whose mode is 0660.",
			codec: text(func(c *Config) *string { return &c.IRI.Group }, group),
		},
		{
			Path: "iri.requestTimeout", Type: TypeDuration, Limits: "1s to 10m",
			Doc:   "Deadline put on a request that comes without one.",
			codec: duration(func(c *Config) *time.Duration { return &c.IRI.RequestTimeout }, time.Second, 10*time.Minute),
		},
	}
}

func hypervisorFields() []Field {
	drivers := []string{Auto, DriverCloudHypervisor, DriverQEMU}
	supervisors := []string{Auto, SupervisorSystemd, SupervisorChild}
	accelerators := []string{Auto, AcceleratorKVM, AcceleratorHVF, AcceleratorTCG}
	ignitions := []string{Auto, IgnitionFWCfg, IgnitionSMBIOS, IgnitionDisk}
	const searched = "the usual places are searched; `check` lists them"
	return []Field{
		{
			Path: "hypervisor.driver", Flag: "hypervisor", Type: TypeString, Allowed: drivers,
			Doc:   "What runs the machines. `auto` takes Cloud Hypervisor where its binary, firmware and /dev/kvm work, else QEMU, and logs why.",
			codec: choice(func(c *Config) *string { return &c.Hypervisor.Driver }, drivers),
		},
		{
			Path: "hypervisor.supervisor", Type: TypeString, Allowed: supervisors,
			Doc:   "What keeps the hypervisor processes: a transient systemd service each, or a detached child. `auto` takes systemd where it is PID 1.",
			codec: choice(func(c *Config) *string { return &c.Hypervisor.Supervisor }, supervisors),
		},
		{
			Path: "hypervisor.cloudHypervisor.binary", Flag: "cloud-hypervisor-binary", Type: TypePath, Empty: searched,
			Doc:   "The cloud-hypervisor executable.",
			codec: text(func(c *Config) *string { return &c.Hypervisor.CloudHypervisor.Binary }, absolute),
		},
		{
			Path: "hypervisor.cloudHypervisor.firmware", Flag: "cloud-hypervisor-firmware", Type: TypePath, Empty: searched,
			Aliases: []Alias{{Name: "cloud-hypervisor-firmware-path"}},
			Doc:     "Firmware for images that bring no kernel of their own.",
			codec:   text(func(c *Config) *string { return &c.Hypervisor.CloudHypervisor.Firmware }, absolute),
		},
		{
			Path: "hypervisor.qemu.binary", Flag: "qemu-binary", Type: TypePath, Empty: searched,
			Doc:   "The qemu-system executable of the host's architecture.",
			codec: text(func(c *Config) *string { return &c.Hypervisor.QEMU.Binary }, absolute),
		},
		{
			Path: "hypervisor.qemu.accelerator", Flag: "qemu-accelerator", Type: TypeString, Allowed: accelerators,
			Doc:   "How QEMU runs guest code. `auto` tries kvm, then hvf (macOS), then tcg, which emulates and is slow.",
			codec: choice(func(c *Config) *string { return &c.Hypervisor.QEMU.Accelerator }, accelerators),
		},
		{
			Path: "hypervisor.qemu.firmware", Flag: "qemu-firmware", Type: TypePath, Empty: searched,
			Doc:   "UEFI firmware for images that bring no kernel of their own.",
			codec: text(func(c *Config) *string { return &c.Hypervisor.QEMU.Firmware }, absolute),
		},
		{
			Path: "hypervisor.qemu.hotplugPorts", Flag: "qemu-hotplug-ports", Type: TypeInt, Limits: "1 to 40",
			Doc:   "PCIe ports kept free per machine for volumes and network interfaces attached while it runs.",
			codec: integer(func(c *Config) *int { return &c.Hypervisor.QEMU.HotplugPorts }, 1, 40),
		},
		{
			Path: "hypervisor.ignition", Type: TypeString, Allowed: ignitions,
			Doc:   "How a guest gets its Ignition document. `fw_cfg` needs QEMU; `smbios` needs Cloud Hypervisor on amd64; `disk` is a small read-only disk.",
			codec: choice(func(c *Config) *string { return &c.Hypervisor.Ignition }, ignitions),
		},
	}
}

func classFields() []Field {
	return []Field{
		{
			Path: "machineClasses.file", Flag: "supported-machine-classes", Type: TypePath, Empty: "no file",
			Doc:   "File with a YAML or JSON list of MachineClass objects, in libvirt-provider's format.",
			codec: text(func(c *Config) *string { return &c.MachineClasses.File }, absolute),
		},
		{
			Path: "machineClasses.inline", Flag: "machine-class", Type: TypeClasses, Empty: "no class",
			Limits: "as a flag `name,cpu=2,memory=4Gi`, repeated for more",
			Doc:    "List of MachineClass objects in this document, in place of the file. The daemon needs either of the two.",
			codec:  classList(func(c *Config) *[]class.Class { return &c.MachineClasses.Inline }),
		},
	}
}

func capacityFields() []Field {
	return []Field{
		{
			Path: "capacity.reservedCPUs", Type: TypeInt, Limits: "0 to 4096",
			Doc:   "CPUs of the host that no machine is promised.",
			codec: integer(func(c *Config) *int { return &c.Capacity.ReservedCPUs }, 0, 4096),
		},
		{
			Path: "capacity.reservedMemory", Type: TypeBytes, Limits: "0 to 1Pi",
			Doc:   "Memory of the host that no machine is promised.",
			codec: bytesValue(func(c *Config) *int64 { return &c.Capacity.ReservedMemory }, 0, 1<<50),
		},
		{
			Path: "capacity.memoryOverheadPerMachine", Type: TypeBytes, Limits: "0 to 64Gi",
			Doc:   "Memory counted for each machine beyond its class, for its hypervisor process.",
			codec: bytesValue(func(c *Config) *int64 { return &c.Capacity.MemoryOverheadPerMachine }, 0, 64<<30),
		},
		{
			Path: "capacity.cpuOvercommit", Type: TypeRatio, Limits: "1.0 to 1000.0",
			Doc:   "Virtual CPUs promised per CPU of the host that is not reserved.",
			codec: ratio(func(c *Config) *float64 { return &c.Capacity.CPUOvercommit }, 1, 1000),
		},
		{
			Path: "capacity.maxMachines", Type: TypeInt, Limits: "0 to 100000; 0 is no limit",
			Doc:   "Greatest number of machines on this host, whatever their class.",
			codec: integer(func(c *Config) *int { return &c.Capacity.MaxMachines }, 0, 100000),
		},
	}
}

func networkFields() []Field {
	plugins := []string{NetworkIsolated, NetworkUser, NetworkProviderNet, NetworkAPINet}
	return []Field{
		{
			Path: "network.plugin", Flag: "network-interface-plugin-name", Type: TypeString, Allowed: plugins,
			Doc:   "How network interfaces are connected. `isolated`: they exist in the guest and lead nowhere. `user`: QEMU's user-mode network, for development. `providernet`: on bridges of the host, or on networks that the daemon makes. `apinet`: on the networks of ironcore-net.",
			codec: choice(func(c *Config) *string { return &c.Network.Plugin }, plugins),
		},
		{
			Path: "network.user.forwards", Type: TypeList, Empty: "no port",
			Limits: "each `host address:port-[guest address]:port`, IPv4 and TCP, for example 127.0.0.1:2222-:22",
			Doc:    "Ports of the host passed on to the guest by the `user` plugin. One machine at a time can have a port.",
			codec:  forwardList(func(c *Config) *[]Forward { return &c.Network.User.Forwards }),
		},
		{
			Path: "network.providernet.allowBridges", Type: TypeList, Empty: "none",
			Limits: "each a bridge's name or a pattern such as br*",
			Doc:    "Bridges of the host that a `network_id` can name beside the networks below.",
			codec:  stringList(func(c *Config) *[]string { return &c.Network.ProviderNet.AllowBridges }, bridgePattern),
		},
		{
			Path: "network.providernet.networks", Flag: "network-providernet-network", Type: TypeNetworks, Empty: "no network",
			Limits: "by name, each with bridge, mtu, isolated, or managed (subnet, gateway, nat, dns, dhcp); as a flag `name,bridge=br0,mtu=9000`, repeated for more",
			Doc:    "Networks that a `network_id` can name: bridges of the host, and managed ones that the daemon makes.",
			codec:  networkList{func(c *Config) *[]ProviderNetwork { return &c.Network.ProviderNet.Networks }},
		},
	}
}

// kebab turns "iri.requestTimeout" into "iri-request-timeout". A run of capitals is one word, and a
// plural s belongs to it: "reservedCPUs" is "reserved-cpus".
func kebab(path string) string {
	r := []rune(path)
	var b strings.Builder
	for i, c := range r {
		if c == '.' {
			b.WriteByte('-')
			continue
		}
		if unicode.IsUpper(c) && i > 0 && r[i-1] != '.' {
			afterSmall := !unicode.IsUpper(r[i-1])
			startsWord := i+2 < len(r) && unicode.IsLower(r[i+1]) && unicode.IsLower(r[i+2])
			if afterSmall || startsWord {
				b.WriteByte('-')
			}
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}
