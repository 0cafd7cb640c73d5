// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"time"
)

// Machine is one machine: its identity, what is wanted of it, and what was done about it. Values handed out by the
// store are shared snapshots: read them, never write to them (Clone first).
type Machine struct {
	ID      string // UUID in canonical lower-case form
	Version uint64 // rises with each durable write of either half
	Desired Desired
	Record  Record
}

// Power is the power state wanted of a machine.
type Power string

// The two power states.
const (
	PowerOn  Power = "On"
	PowerOff Power = "Off"
)

// Desired is what the client asked for, verbatim. Only request handlers write it.
type Desired struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Generation  int64             `json:"generation"` // rises on changes of what follows below, never on annotations
	CreatedAt   time.Time         `json:"createdAt"`
	DeletedAt   *time.Time        `json:"deletedAt,omitempty"` // deletion intent; never unset once set
	Power       Power             `json:"power"`
	// PowerGeneration is the generation at which the machine was last turned on or off; 0 = that of now, if the machine
	// is older than this field.
	PowerGeneration int64              `json:"powerGeneration,omitempty"`
	Class           string             `json:"class"`
	Resources       Resources          `json:"resources"` // of the class when the machine was admitted
	Ignition        []byte             `json:"ignition,omitempty"`
	Volumes         []Volume           `json:"volumes,omitempty"`
	NICs            []NetworkInterface `json:"networkInterfaces,omitempty"`
	GuestConfig     *GuestConfig       `json:"guestConfig,omitempty"`
}

// Deleting reports whether deletion was asked for.
func (d *Desired) Deleting() bool { return d.DeletedAt != nil }

// Resources is the size of a machine.
type Resources struct {
	CPUs        int64 `json:"cpus"`        // whole virtual CPUs, at least 1
	MemoryBytes int64 `json:"memoryBytes"` // guest memory in bytes
}

// GuestConfig is what the guest should be told about itself.
type GuestConfig struct {
	Hostname string `json:"hostname,omitempty"`
}

// Volume is one wanted volume. Exactly one of LocalDisk and Connection is set.
type Volume struct {
	Name       string      `json:"name"`
	Device     string      `json:"device,omitempty"` // "oda", "odb", …
	LocalDisk  *LocalDisk  `json:"localDisk,omitempty"`
	Connection *Connection `json:"connection,omitempty"`
}

// LocalDisk is a disk kept on this host.
type LocalDisk struct {
	SizeBytes int64   `json:"sizeBytes,omitempty"` // 0 = the image's size, or the plugin's default without one
	Image     *string `json:"image,omitempty"`     // OCI reference; nil = empty disk
}

// Connection is a volume kept elsewhere.
type Connection struct {
	Driver                string            `json:"driver"`
	Handle                string            `json:"handle,omitempty"`
	Attributes            map[string]string `json:"attributes,omitempty"`
	SecretData            map[string][]byte `json:"secretData,omitempty"`
	EncryptionData        map[string][]byte `json:"encryptionData,omitempty"`
	EffectiveStorageBytes int64             `json:"effectiveStorageBytes,omitempty"`
}

// NetworkInterface is one wanted network interface.
type NetworkInterface struct {
	Name       string            `json:"name"`
	NetworkID  string            `json:"networkID,omitempty"`
	IPs        []string          `json:"ips,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
}

// Volume returns the wanted volume of a name.
func (d *Desired) Volume(name string) (Volume, bool) {
	for _, v := range d.Volumes {
		if v.Name == name {
			return v, true
		}
	}
	return Volume{}, false
}

// NIC returns the wanted network interface of a name.
func (d *Desired) NIC(name string) (NetworkInterface, bool) {
	for _, n := range d.NICs {
		if n.Name == name {
			return n, true
		}
	}
	return NetworkInterface{}, false
}

// Respec raises the generation for a change of the spec that does not touch the power.
func (d *Desired) Respec() {
	if d.PowerGeneration == 0 {
		d.PowerGeneration = d.Generation
	}
	d.Generation++
}

// Repower sets the power and raises the generation.
func (d *Desired) Repower(p Power) {
	d.Power = p
	d.Generation++
	d.PowerGeneration = d.Generation
}

// BootImage returns the OCI reference the machine boots from: that of the first volume that has one.
func (d *Desired) BootImage() (ref string, volume string, ok bool) {
	for _, v := range d.Volumes {
		if v.LocalDisk != nil && v.LocalDisk.Image != nil && *v.LocalDisk.Image != "" {
			return *v.LocalDisk.Image, v.Name, true
		}
	}
	return "", "", false
}
