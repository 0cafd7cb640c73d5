// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package config is the daemon's configuration: one versioned YAML document, overridden by flags.
//
// It exists so that one table (fields.go) decides everything about a setting: its path, flag, the
// names that other IronCore providers use for it, its type, default and limits, its documentation,
// and so the loader, the flags, `config explain` and docs/configuration.md cannot disagree. Whatever
// is wrong is found before anything starts, all of it at once, each with its place.
//
// It must never touch the host beyond reading the one file it is told to, never guess at a key it
// does not know, and never let a value through that another value contradicts.
package config

import (
	"net/netip"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config/document"
)

// The type of the document.
const (
	APIVersion = "config.cloud-hypervisor-provider.ironcore.dev/v1alpha1"
	Kind       = "ProviderConfig"
)

// Values of the settings that name a choice.
const (
	Auto = "auto"

	DriverCloudHypervisor = "cloud-hypervisor"
	DriverQEMU            = "qemu"

	SupervisorSystemd = "systemd"
	SupervisorChild   = "child"

	AcceleratorKVM = "kvm"
	AcceleratorHVF = "hvf"
	AcceleratorTCG = "tcg"

	IgnitionFWCfg  = "fw_cfg"
	IgnitionSMBIOS = "smbios"
	IgnitionDisk   = "disk"

	GuestOffRestart = "restart"
	GuestOffKeep    = "keep"

	// In libvirt-provider's spelling.
	GuestAgentNone = "None"
	GuestAgentQEMU = "Qemu"

	NetworkIsolated = "isolated"
	NetworkUser     = "user"
	// In libvirt-provider's spelling.
	NetworkProviderNet = "providernet"

	LogText = "text"
	LogJSON = "json"
)

// Config is everything that an operator can set. What each value means, its unit and its limits
// stand in the table of fields and in docs/configuration.md.
type Config struct {
	StateDir       string
	RuntimeDir     string
	IRI            IRI
	Hypervisor     Hypervisor
	MachineClasses MachineClasses
	Capacity       Capacity
	Network        Network
	Volumes        Volumes
	Images         Images
	Reconcile      Reconcile
	Shutdown       Shutdown
	Events         Events
	GuestAgent     GuestAgent
	Console        Console
	Streaming      Streaming
	Servers        Servers
	Log            Log
}

// IRI is the socket that the machine pool controller talks to.
type IRI struct {
	Address        string
	Group          string // name or number; empty leaves the group as it is
	RequestTimeout time.Duration
}

// Hypervisor says what runs the machines.
type Hypervisor struct {
	Driver          string
	Supervisor      string
	CloudHypervisor CloudHypervisor
	QEMU            QEMU
	Ignition        string
}

// CloudHypervisor holds paths; empty means that the usual places are searched.
type CloudHypervisor struct {
	Binary   string
	Firmware string
}

// QEMU holds what only the QEMU driver needs; an empty path means that the usual places are searched.
type QEMU struct {
	Binary       string
	Accelerator  string
	Firmware     string
	HotplugPorts int
}

// MachineClasses is where the classes come from; at most one of the two is set.
type MachineClasses struct {
	File   string
	Inline []class.Class
}

// Capacity is what machines may use of the host. Memory is in bytes.
type Capacity struct {
	ReservedCPUs             int
	ReservedMemory           int64
	MemoryOverheadPerMachine int64
	CPUOvercommit            float64
	MaxMachines              int // 0 is no limit
}

// Reserve is the same for counting how many machines of a class fit.
func (c Capacity) Reserve() class.Reserve {
	return class.Reserve{
		CPUs:             int64(c.ReservedCPUs),
		MemoryBytes:      c.ReservedMemory,
		MemoryPerMachine: c.MemoryOverheadPerMachine,
		CPUOvercommit:    c.CPUOvercommit,
		MaxMachines:      int64(c.MaxMachines),
	}
}

// Network is how machines are connected.
type Network struct {
	Plugin      string
	User        UserNetwork
	ProviderNet ProviderNetworks
	APINet      APINet
}

// UserNetwork is QEMU's user-mode network, for development.
type UserNetwork struct {
	Forwards []Forward
}

// Forward passes TCP connections to a port of the host on to a guest.
type Forward struct {
	HostAddress  netip.Addr
	HostPort     uint16
	GuestAddress netip.Addr // not valid when left to QEMU's DHCP server
	GuestPort    uint16
}

// Images is how images are pulled and how much of the disk they may take.
type Images struct {
	PlainHTTP          []string // registries as host or host:port
	DockerConfig       string
	MaxConcurrentPulls int
	Budget             document.Amount // none is no bound
	Reserve            document.Amount
}

// Reconcile is how eagerly the daemon works.
type Reconcile struct {
	Workers        int
	ResyncInterval time.Duration
	MaxBackoff     time.Duration
}

// Shutdown is how guests go down.
type Shutdown struct {
	DeleteTimeout   time.Duration
	PowerOffTimeout time.Duration
	SignalInterval  time.Duration
	OnGuestPowerOff string
}

// Events is how long machine events are kept.
type Events struct {
	Max           int
	TTL           time.Duration
	SweepInterval time.Duration
}

// GuestAgent is the program inside the guests that is asked for what only they know. Type is GuestAgentNone or
// GuestAgentQEMU.
type GuestAgent struct {
	Type string
}

// Console is how much of a guest's console output is kept. LogMaxBytes is for one file.
type Console struct {
	LogMaxBytes int64
	LogBackups  int
}

// Streaming is the server of the URLs that the IRI call Exec answers with; an empty address keeps it off.
type Streaming struct {
	Address     string
	BaseURL     string // empty follows from Address
	TLSCertFile string // with TLSKeyFile, or both empty for plain HTTP
	TLSKeyFile  string
}

// Servers are the HTTP servers; an empty address keeps one off.
type Servers struct {
	HealthAddress     string // may name a port alone, for every interface
	MetricsAddress    string
	PerMachineMetrics int // machines with metrics of their own; 0 is none
}

// Log is the daemon's own log on standard error.
type Log struct {
	Level  string
	Format string
}

// Default returns the configuration that an empty document stands for.
func Default() Config {
	return Config{
		StateDir:   "/var/lib/cloud-hypervisor-provider",
		RuntimeDir: "/run/cloud-hypervisor-provider",
		IRI:        IRI{Address: "/run/iri-machineprovider.sock", RequestTimeout: 30 * time.Second},
		Hypervisor: Hypervisor{
			Driver:     Auto,
			Supervisor: Auto,
			QEMU:       QEMU{Accelerator: Auto, HotplugPorts: 16},
			Ignition:   Auto,
		},
		Capacity: Capacity{
			ReservedMemory:           512 << 20,
			MemoryOverheadPerMachine: 64 << 20,
			CPUOvercommit:            1,
		},
		Network:   Network{Plugin: NetworkIsolated},
		Volumes:   defaultVolumes(),
		Images:    Images{MaxConcurrentPulls: 3, Reserve: document.Amount{Percent: 2}},
		Reconcile: Reconcile{Workers: 15, ResyncInterval: time.Minute, MaxBackoff: 30 * time.Second},
		Shutdown: Shutdown{
			DeleteTimeout: 5 * time.Minute, PowerOffTimeout: 2 * time.Minute, SignalInterval: 5 * time.Second,
			OnGuestPowerOff: GuestOffRestart,
		},
		Events:     Events{Max: 1000, TTL: 5 * time.Minute, SweepInterval: time.Minute},
		GuestAgent: GuestAgent{Type: GuestAgentNone},
		Console:    Console{LogMaxBytes: 8 << 20, LogBackups: 1},
		Servers:    Servers{HealthAddress: ":8181", MetricsAddress: "127.0.0.1:8182", PerMachineMetrics: 500},
		Streaming:  Streaming{Address: "127.0.0.1:20251"},
		Log:        Log{Level: "info", Format: LogText},
	}
}
