// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"maps"
	"slices"
)

// Clone returns a copy that shares nothing with m.
func (m *Machine) Clone() *Machine {
	c := *m
	c.Desired = m.Desired.Clone()
	c.Record = m.Record.Clone()
	return &c
}

// Clone returns a copy that shares nothing with d.
func (d *Desired) Clone() Desired {
	c := *d
	c.Labels = maps.Clone(d.Labels)
	c.Annotations = maps.Clone(d.Annotations)
	c.DeletedAt = clonePtr(d.DeletedAt)
	c.Ignition = bytes.Clone(d.Ignition)
	c.GuestConfig = clonePtr(d.GuestConfig)
	c.Volumes = slices.Clone(d.Volumes)
	for i := range c.Volumes {
		c.Volumes[i] = c.Volumes[i].Clone()
	}
	c.NICs = slices.Clone(d.NICs)
	for i := range c.NICs {
		c.NICs[i].IPs = slices.Clone(c.NICs[i].IPs)
		c.NICs[i].Attributes = maps.Clone(c.NICs[i].Attributes)
	}
	return c
}

// Clone returns a copy that shares nothing with v.
func (v Volume) Clone() Volume {
	if v.LocalDisk != nil {
		v.LocalDisk = clonePtr(v.LocalDisk)
		v.LocalDisk.Image = clonePtr(v.LocalDisk.Image)
	}
	if v.Connection != nil {
		v.Connection = clonePtr(v.Connection)
		v.Connection.Attributes = maps.Clone(v.Connection.Attributes)
		v.Connection.SecretData = cloneBytesMap(v.Connection.SecretData)
		v.Connection.EncryptionData = cloneBytesMap(v.Connection.EncryptionData)
	}
	return v
}

// Clone returns a copy that shares nothing with r.
func (r *Record) Clone() Record {
	c := *r
	c.Image = clonePtr(r.Image)
	if r.VMM != nil {
		c.VMM = clonePtr(r.VMM)
		c.VMM.Process = clonePtr(r.VMM.Process)
		c.VMM.BootedAt = clonePtr(r.VMM.BootedAt)
		c.VMM.StopAskedAt = clonePtr(r.VMM.StopAskedAt)
	}
	c.Volumes = maps.Clone(r.Volumes)
	c.NICs = maps.Clone(r.NICs)
	c.Exit = clonePtr(r.Exit)
	if r.Shutdown != nil {
		c.Shutdown = clonePtr(r.Shutdown)
		c.Shutdown.AgentAskedAt = clonePtr(r.Shutdown.AgentAskedAt)
		c.Shutdown.ButtonAt = clonePtr(r.Shutdown.ButtonAt)
	}
	c.Conditions = slices.Clone(r.Conditions)
	return c
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

func cloneBytesMap(m map[string][]byte) map[string][]byte {
	c := maps.Clone(m)
	for k, v := range c {
		c[k] = bytes.Clone(v)
	}
	return c
}
