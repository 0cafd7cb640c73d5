// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

// The types below mirror the names, field order and defaults of the VmConfig that Cloud Hypervisor
// answers in vm.info, because clients compare both. The tag `ch` says how a field is read and written:
//
//	name        first element, the key in JSON
//	req         the key must be there
//	opt         Rust's Option: null in answers up to v52, left out from v53 on
//	custom      a string checked by a custom parser (mac, ip)
//	path        a string called "path string" in type errors
//	usize       the integer calls itself usize in type errors
//	skipfalse   left out when false
//	since53     unknown to v52
//	old=NAME    the key of v52 (NAME stays accepted later)
//
// `def` holds the default and `enum` the allowed spellings.

// VMConfig is the machine description of vm.create.
type VMConfig struct {
	Cpus             CpusConfig               `ch:"cpus"`
	Memory           MemoryConfig             `ch:"memory"`
	Payload          *PayloadConfig           `ch:"payload,opt"`
	RateLimitGroups  []RateLimiterGroupConfig `ch:"rate_limit_groups,opt"`
	Disks            []DiskConfig             `ch:"disks,opt"`
	Net              []NetConfig              `ch:"net,opt"`
	Rng              RngConfig                `ch:"rng"`
	Balloon          *BalloonConfig           `ch:"balloon,opt"`
	GenericVhostUser []GenericVhostUserConfig `ch:"generic_vhost_user,opt,since53"`
	Fs               []FsConfig               `ch:"fs,opt"`
	Pmem             []PmemConfig             `ch:"pmem,opt"`
	Serial           SerialConfig             `ch:"serial"`
	Console          ConsoleConfig            `ch:"console"`
	DebugConsole     DebugConsoleConfig       `ch:"debug_console"`
	Devices          []DeviceConfig           `ch:"devices,opt"`
	UserDevices      []UserDeviceConfig       `ch:"user_devices,opt"`
	Vdpa             []VdpaConfig             `ch:"vdpa,opt"`
	Vsock            *VsockConfig             `ch:"vsock,opt"`
	Pvpanic          bool                     `ch:"pvpanic"`
	Iommu            bool                     `ch:"iommu"`
	Numa             []NumaConfig             `ch:"numa,opt"`
	Watchdog         bool                     `ch:"watchdog"`
	Rtc              *RtcConfig               `ch:"rtc,opt,since53"`
	PciSegments      []PciSegmentConfig       `ch:"pci_segments,opt"`
	Platform         *PlatformConfig          `ch:"platform,opt"`
	Tpm              *TpmConfig               `ch:"tpm,opt"`
	LandlockEnable   bool                     `ch:"landlock_enable"`
	LandlockRules    []LandlockConfig         `ch:"landlock_rules,opt"`
}

// CpusConfig describes the vCPUs.
type CpusConfig struct {
	BootVcpus      uint32        `ch:"boot_vcpus,req"`
	MaxVcpus       uint32        `ch:"max_vcpus,req"`
	Topology       *CPUTopology  `ch:"topology,opt"`
	KvmHyperv      bool          `ch:"kvm_hyperv"`
	MaxPhysBits    uint8         `ch:"max_phys_bits" def:"46"`
	Affinity       []CPUAffinity `ch:"affinity,opt"`
	Features       CPUFeatures   `ch:"features"`
	Nested         bool          `ch:"nested" def:"true"`
	CoreScheduling string        `ch:"core_scheduling,since53" enum:"Vm|Vcpu|Off" def:"Vm"`
	Profile        string        `ch:"profile,since53" def:"Host"`
}

// CPUTopology splits the vCPUs into packages, dies, cores and threads.
type CPUTopology struct {
	ThreadsPerCore uint16 `ch:"threads_per_core,req"`
	CoresPerDie    uint16 `ch:"cores_per_die,req"`
	DiesPerPackage uint16 `ch:"dies_per_package,req"`
	Packages       uint16 `ch:"packages,req"`
}

// CPUAffinity pins one vCPU.
type CPUAffinity struct {
	Vcpu     uint32   `ch:"vcpu,req"`
	HostCpus []uint64 `ch:"host_cpus,req,usize"`
}

// CPUFeatures switches optional CPU features.
type CPUFeatures struct {
	Amx bool `ch:"amx"`
}

// MemoryConfig describes the guest RAM; sizes in bytes.
type MemoryConfig struct {
	Size           uint64             `ch:"size,req"`
	Mergeable      bool               `ch:"mergeable"`
	HotplugMethod  string             `ch:"hotplug_method" enum:"Acpi|VirtioMem" def:"Acpi"`
	HotplugSize    *uint64            `ch:"hotplug_size,opt"`
	HotpluggedSize *uint64            `ch:"hotplugged_size,opt"`
	Shared         bool               `ch:"shared"`
	Hugepages      bool               `ch:"hugepages"`
	HugepageSize   *uint64            `ch:"hugepage_size,opt"`
	Prefault       bool               `ch:"prefault"`
	Reserve        bool               `ch:"reserve,since53"`
	Zones          []MemoryZoneConfig `ch:"zones,opt"`
	Thp            bool               `ch:"thp" def:"true"`
}

// MemoryZoneConfig is one user-defined memory zone; sizes in bytes.
type MemoryZoneConfig struct {
	ID             string  `ch:"id,req"`
	Size           uint64  `ch:"size,req"`
	File           *string `ch:"file,opt,path"`
	Shared         bool    `ch:"shared"`
	Hugepages      bool    `ch:"hugepages"`
	HugepageSize   *uint64 `ch:"hugepage_size,opt"`
	HostNumaNode   *uint32 `ch:"host_numa_node,opt"`
	HotplugSize    *uint64 `ch:"hotplug_size,opt"`
	HotpluggedSize *uint64 `ch:"hotplugged_size,opt"`
	Prefault       bool    `ch:"prefault"`
	Reserve        bool    `ch:"reserve,since53"`
	Mergeable      bool    `ch:"mergeable"`
}

// PayloadConfig says what is booted.
type PayloadConfig struct {
	Firmware  *string `ch:"firmware,opt,path"`
	Kernel    *string `ch:"kernel,opt,path"`
	Cmdline   *string `ch:"cmdline,opt"`
	Initramfs *string `ch:"initramfs,opt,path"`
}

// PciDeviceCommonConfig is flattened into each PCI device's object.
type PciDeviceCommonConfig struct {
	ID          *string `ch:"id,opt"`
	Iommu       bool    `ch:"iommu,skipfalse"`
	PciSegment  uint16  `ch:"pci_segment"`
	PciDeviceID *uint8  `ch:"pci_device_id,opt"`
}

// DiskConfig is one virtio-blk or vhost-user-blk disk.
type DiskConfig struct {
	PciDeviceCommonConfig
	Path            *string             `ch:"path,opt,path"`
	Readonly        bool                `ch:"readonly"`
	Direct          bool                `ch:"direct"`
	NumQueues       uint64              `ch:"num_queues,usize" def:"1"`
	QueueSize       uint16              `ch:"queue_size" def:"128"`
	VhostUser       bool                `ch:"vhost_user"`
	VhostSocket     *string             `ch:"vhost_socket,opt"`
	RateLimitGroup  *string             `ch:"rate_limit_group,opt"`
	RateLimiter     *RateLimiterConfig  `ch:"rate_limiter_config,opt"`
	DisableIoUring  bool                `ch:"disable_io_uring"`
	DisableAio      bool                `ch:"disable_aio"`
	Serial          *string             `ch:"serial,opt"`
	QueueAffinity   []VirtQueueAffinity `ch:"queue_affinity,opt"`
	BackingFiles    bool                `ch:"backing_files"`
	Sparse          bool                `ch:"sparse" def:"true"`
	ImageType       string              `ch:"image_type" enum:"FixedVhd|Qcow2|Raw|Vhdx|Unknown" def:"Unknown"`
	LockGranularity string              `ch:"lock_granularity" enum:"ByteRange|Full" def:"ByteRange"`
}

// RateLimiterConfig holds two token buckets.
type RateLimiterConfig struct {
	Bandwidth *TokenBucketConfig `ch:"bandwidth,opt"`
	Ops       *TokenBucketConfig `ch:"ops,opt"`
}

// TokenBucketConfig is one bucket; refill_time in milliseconds.
type TokenBucketConfig struct {
	Size         uint64  `ch:"size,req"`
	OneTimeBurst *uint64 `ch:"one_time_burst,opt"`
	RefillTime   uint64  `ch:"refill_time,req"`
}

// RateLimiterGroupConfig is a named rate limiter.
type RateLimiterGroupConfig struct {
	ID          string            `ch:"id"`
	RateLimiter RateLimiterConfig `ch:"rate_limiter_config"`
}

// VirtQueueAffinity pins one queue.
type VirtQueueAffinity struct {
	QueueIndex uint16   `ch:"queue_index,req"`
	HostCpus   []uint64 `ch:"host_cpus,req,usize"`
}

// NetConfig is one virtio-net or vhost-user-net device.
type NetConfig struct {
	PciDeviceCommonConfig
	Tap         *string            `ch:"tap,opt"`
	IP          *string            `ch:"ip,opt,custom"`
	Mask        *string            `ch:"mask,opt,custom"`
	Mac         string             `ch:"mac,custom"`
	HostMac     *string            `ch:"host_mac,opt,custom"`
	Mtu         *uint16            `ch:"mtu,opt"`
	NumQueues   uint64             `ch:"num_queues,usize" def:"2"`
	QueueSize   uint16             `ch:"queue_size" def:"256"`
	VhostUser   bool               `ch:"vhost_user"`
	VhostSocket *string            `ch:"vhost_socket,opt"`
	VhostMode   string             `ch:"vhost_mode" enum:"Client|Server" def:"Client"`
	Fds         []int32            `ch:"fds,opt"`
	RateLimiter *RateLimiterConfig `ch:"rate_limiter_config,opt"`
	OffloadTso  bool               `ch:"offload_tso" def:"true"`
	OffloadUfo  bool               `ch:"offload_ufo" def:"true"`
	OffloadCsum bool               `ch:"offload_csum" def:"true"`
}

// RngConfig is the entropy device.
type RngConfig struct {
	PciDeviceCommonConfig
	Src string `ch:"src,req,path"`
}

// RtcConfig is the virtio clock.
type RtcConfig struct {
	PciDeviceCommonConfig
}

// BalloonConfig is the balloon; size in bytes.
type BalloonConfig struct {
	PciDeviceCommonConfig
	Size              uint64 `ch:"size,req"`
	DeflateOnOom      bool   `ch:"deflate_on_oom"`
	FreePageReporting bool   `ch:"free_page_reporting"`
}

// FsConfig is a virtio-fs share.
type FsConfig struct {
	PciDeviceCommonConfig
	Tag       string `ch:"tag,req"`
	Socket    string `ch:"socket,req,path"`
	NumQueues uint64 `ch:"num_queues,usize" def:"1"`
	QueueSize uint16 `ch:"queue_size" def:"1024"`
}

// GenericVhostUserConfig is a vhost-user device of any type.
type GenericVhostUserConfig struct {
	PciDeviceCommonConfig
	Socket     string   `ch:"socket,req,path"`
	QueueSizes []uint16 `ch:"queue_sizes,req"`
	DeviceType uint32   `ch:"device_type,req"`
}

// PmemConfig is a persistent memory device.
type PmemConfig struct {
	PciDeviceCommonConfig
	File          string  `ch:"file,req,path"`
	Size          *uint64 `ch:"size,opt"`
	DiscardWrites bool    `ch:"discard_writes"`
}

// CommonConsoleConfig is flattened into serial and console.
type CommonConsoleConfig struct {
	File   *string `ch:"file,opt,path"`
	Mode   string  `ch:"mode,req" enum:"Off|Pty|Tty|File|Socket|Null"`
	Socket *string `ch:"socket,opt,path"`
}

// SerialConfig is the 16550 or PL011 port.
type SerialConfig struct {
	CommonConsoleConfig
}

// ConsoleConfig is the virtio console.
type ConsoleConfig struct {
	CommonConsoleConfig
	PciDeviceCommonConfig
}

// DebugConsoleConfig is the x86 debug port.
type DebugConsoleConfig struct {
	File   *string `ch:"file,opt,path"`
	Mode   string  `ch:"mode,req" enum:"Off|Pty|Tty|File|Socket|Null"`
	Iobase *uint16 `ch:"iobase,opt"`
}

// DeviceConfig is a VFIO device.
type DeviceConfig struct {
	PciDeviceCommonConfig
	Path             *string  `ch:"path,opt,path"`
	Fd               *int32   `ch:"fd,opt,since53"`
	NvGPUDirect      *uint8   `ch:"x_nv_gpudirect_clique,opt"`
	XExcludeMmapBars []uint64 `ch:"x_exclude_mmap_bars,since53"`
}

// UserDeviceConfig is a vfio-user device.
type UserDeviceConfig struct {
	PciDeviceCommonConfig
	Socket string `ch:"socket,req,path"`
}

// VdpaConfig is a vDPA device.
type VdpaConfig struct {
	PciDeviceCommonConfig
	Path      string `ch:"path,req,path"`
	NumQueues uint64 `ch:"num_queues,usize" def:"1"`
}

// VsockConfig is the hybrid vsock device.
type VsockConfig struct {
	PciDeviceCommonConfig
	Cid    uint32 `ch:"cid,req"`
	Socket string `ch:"socket,req,path"`
}

// NumaDistance is one entry of a NUMA distance table.
type NumaDistance struct {
	Destination uint32 `ch:"destination"`
	Distance    uint8  `ch:"distance"`
}

// NumaConfig is one guest NUMA node.
type NumaConfig struct {
	GuestNumaID uint32         `ch:"guest_numa_id,req"`
	Cpus        []uint32       `ch:"cpus,opt"`
	Distances   []NumaDistance `ch:"distances,opt"`
	MemoryZones []string       `ch:"memory_zones,opt"`
	PciSegments []uint16       `ch:"pci_segments,opt"`
	DeviceID    *string        `ch:"device_id,opt"`
}

// PciSegmentConfig weighs the apertures of one segment.
type PciSegmentConfig struct {
	PciSegment     uint16 `ch:"pci_segment"`
	Mmio32Aperture uint32 `ch:"mmio32_aperture_weight" def:"1"`
	Mmio64Aperture uint32 `ch:"mmio64_aperture_weight" def:"1"`
}

// PlatformConfig holds PCI segments and SMBIOS strings.
type PlatformConfig struct {
	NumPciSegments    uint16   `ch:"num_pci_segments" def:"1"`
	IommuSegments     []uint16 `ch:"iommu_segments,opt"`
	IommuAddressWidth uint8    `ch:"iommu_address_width_bits" def:"64"`
	SerialNumber      *string  `ch:"system_serial_number,opt,old=serial_number"`
	UUID              *string  `ch:"system_uuid,opt,old=uuid"`
	OemStrings        []string `ch:"oem_strings,opt"`
	Manufacturer      *string  `ch:"system_manufacturer,opt,since53"`
	ProductName       *string  `ch:"system_product_name,opt,since53"`
	Version           *string  `ch:"system_version,opt,since53"`
	Family            *string  `ch:"system_family,opt,since53"`
	SkuNumber         *string  `ch:"system_sku_number,opt,since53"`
	ChassisAssetTag   *string  `ch:"chassis_asset_tag,opt,since53"`
	Iommufd           bool     `ch:"iommufd"`
	IommufdFd         *int32   `ch:"iommufd_fd,opt,since53"`
	VfioP2pDma        bool     `ch:"vfio_p2p_dma" def:"true"`
}

// TpmConfig is a software TPM.
type TpmConfig struct {
	Socket string `ch:"socket,req,path"`
}

// LandlockConfig is one extra Landlock rule.
type LandlockConfig struct {
	Path   string `ch:"path,req,path"`
	Access string `ch:"access,req"`
}

// defaultVMConfig is the configuration of an empty request body.
func defaultVMConfig() VMConfig {
	return VMConfig{
		Cpus: CpusConfig{
			BootVcpus: 1, MaxVcpus: 1, MaxPhysBits: 46, Nested: true, CoreScheduling: "Vm", Profile: "Host",
		},
		Memory:       MemoryConfig{Size: 512 << 20, HotplugMethod: "Acpi", Thp: true},
		Rng:          RngConfig{Src: "/dev/urandom"},
		Serial:       SerialConfig{CommonConsoleConfig{Mode: "Null"}},
		Console:      ConsoleConfig{CommonConsoleConfig: CommonConsoleConfig{Mode: "Tty"}},
		DebugConsole: DebugConsoleConfig{Mode: "Off", Iobase: ptr(uint16(0xe9))},
	}
}

func ptr[T any](v T) *T { return &v }

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
