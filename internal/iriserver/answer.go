// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"slices"
	"sync"

	eventapi "github.com/ironcore-dev/ironcore/iri/apis/event/v1alpha1"
	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	metaapi "github.com/ironcore-dev/ironcore/iri/apis/meta/v1alpha1"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/event"
)

// answerCache keeps the answer made of each stored machine. Stored machines are immutable snapshots, so an answer
// holds as long as the store hands out the same one.
type answerCache struct {
	mu      sync.RWMutex
	answers map[string]cachedAnswer
}

type cachedAnswer struct {
	of     *machine.Machine
	answer *iri.Machine
}

func (c *answerCache) get(m *machine.Machine) *iri.Machine {
	c.mu.RLock()
	hit, ok := c.answers[m.ID]
	c.mu.RUnlock()
	if ok && hit.of == m {
		return hit.answer
	}
	answer := machineAnswer(m)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers == nil {
		c.answers = map[string]cachedAnswer{}
	}
	c.answers[m.ID] = cachedAnswer{of: m, answer: answer}
	return answer
}

// sweep forgets removed machines once they outnumber the living ones.
func (c *answerCache) sweep(living int, gone func(id string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.answers) <= 2*living+64 {
		return
	}
	for id := range c.answers {
		if gone(id) {
			delete(c.answers, id)
		}
	}
}

// machineAnswer is a machine as the IRI shows it: what was asked for, field by field as it came, but for the
// Ignition payload.
func machineAnswer(m *machine.Machine) *iri.Machine {
	d := &m.Desired
	meta := &metaapi.ObjectMetadata{
		Id: m.ID, Annotations: d.Annotations, Labels: d.Labels, Generation: d.Generation, CreatedAt: d.CreatedAt.UnixNano(),
	}
	if d.DeletedAt != nil {
		meta.DeletedAt = d.DeletedAt.UnixNano()
	}
	spec := &iri.MachineSpec{Class: d.Class}
	if d.Power == machine.PowerOff {
		spec.Power = iri.Power_POWER_OFF
	}
	if d.GuestConfig != nil {
		spec.GuestConfig = &iri.GuestConfig{Hostname: d.GuestConfig.Hostname}
	}
	for _, v := range d.Volumes {
		spec.Volumes = append(spec.Volumes, volumeAnswer(v))
	}
	for _, n := range d.NICs {
		spec.NetworkInterfaces = append(spec.NetworkInterfaces, &iri.NetworkInterface{
			Name: n.Name, NetworkId: n.NetworkID, Ips: n.IPs, Attributes: n.Attributes,
		})
	}
	return &iri.Machine{Metadata: meta, Spec: spec, Status: statusAnswer(m)}
}

func volumeAnswer(v machine.Volume) *iri.Volume {
	out := &iri.Volume{Name: v.Name, Device: v.Device}
	if l := v.LocalDisk; l != nil {
		out.LocalDisk = &iri.LocalDisk{SizeBytes: l.SizeBytes}
		if l.Image != nil {
			out.LocalDisk.Image = &iri.ImageSpec{Image: *l.Image}
		}
	}
	if c := v.Connection; c != nil {
		out.Connection = &iri.VolumeConnection{
			Driver: c.Driver, Handle: c.Handle, Attributes: c.Attributes, SecretData: c.SecretData,
			EncryptionData: c.EncryptionData, EffectiveStorageBytes: c.EffectiveStorageBytes,
		}
	}
	return out
}

var stateAnswers = map[machine.State]iri.MachineState{
	machine.Pending:     iri.MachineState_MACHINE_PENDING,
	machine.Running:     iri.MachineState_MACHINE_RUNNING,
	machine.Suspended:   iri.MachineState_MACHINE_SUSPENDED,
	machine.Terminating: iri.MachineState_MACHINE_TERMINATING,
	machine.Terminated:  iri.MachineState_MACHINE_TERMINATED,
}

func statusAnswer(m *machine.Machine) *iri.MachineStatus {
	d, r := &m.Desired, &m.Record
	status := &iri.MachineStatus{ObservedGeneration: r.ObservedGeneration, State: stateAnswers[r.State]}
	if d.Deleting() {
		status.State = iri.MachineState_MACHINE_TERMINATING
	}
	if r.Image != nil {
		status.ImageRef = r.Image.Ref
	}
	for _, name := range volumeNames(d, r) {
		rec := r.Volumes[name]
		one := &iri.VolumeStatus{Name: name, Handle: rec.Handle}
		if rec.Attached {
			one.State = iri.VolumeState_VOLUME_ATTACHED
		}
		status.Volumes = append(status.Volumes, one)
	}
	for _, name := range nicNames(d, r) {
		rec := r.NICs[name]
		one := &iri.NetworkInterfaceStatus{Name: name, Handle: rec.Handle}
		if rec.Attached {
			one.State = iri.NetworkInterfaceState_NETWORK_INTERFACE_ATTACHED
		}
		status.NetworkInterfaces = append(status.NetworkInterfaces, one)
	}
	for _, c := range r.Conditions {
		status.MachineConditions = append(status.MachineConditions, &iri.Conditions{
			Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message,
			LastTransitionTime: c.LastTransition.Unix(),
		})
	}
	return status
}

// volumeNames lists what is wanted, in its order, then what nobody wants any more and is still leaving, by name.
func volumeNames(d *machine.Desired, r *machine.Record) []string {
	var names, leaving []string
	for _, v := range d.Volumes {
		names = append(names, v.Name)
	}
	for name, rec := range r.Volumes {
		if _, wanted := d.Volume(name); !wanted && rec.IsLeaving() {
			leaving = append(leaving, name)
		}
	}
	slices.Sort(leaving)
	return append(names, leaving...)
}

func nicNames(d *machine.Desired, r *machine.Record) []string {
	var names, leaving []string
	for _, n := range d.NICs {
		names = append(names, n.Name)
	}
	for name := range r.NICs {
		if _, wanted := d.NIC(name); !wanted {
			leaving = append(leaving, name)
		}
	}
	slices.Sort(leaving)
	return append(names, leaving...)
}

func eventAnswer(e event.Event) *eventapi.Event {
	return &eventapi.Event{Spec: &eventapi.EventSpec{
		InvolvedObjectMeta: &metaapi.ObjectMetadata{
			Id: e.Involved.ID, Labels: e.Involved.Labels, Annotations: e.Involved.Annotations,
		},
		Reason: e.Reason, Message: e.Message, Type: string(e.Type), Action: e.Action, EventTime: e.Time.Unix(),
	}}
}
