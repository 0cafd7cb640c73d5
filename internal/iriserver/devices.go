// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// The calls of this file change what is wanted of a machine's devices, in one write each, and answer; the reconciler
// does the rest. What is listed in the spec is what is wanted at once. A client replaces a device by removing it and
// adding it again within a millisecond, so that a device that is still leaving is no reason to refuse the next one.

// AttachVolume adds a volume, behind those that are there.
func (s *Server) AttachVolume(ctx context.Context, req *iri.AttachVolumeRequest) (*iri.AttachVolumeResponse, error) {
	m, err := s.changeable(req.GetMachineId())
	if err != nil {
		return nil, err
	}
	v, err := s.volume("volume", req.GetVolume())
	if err != nil {
		return nil, err
	}
	err = s.respec(ctx, m, "volume attach asked for", v.Name, func(d *machine.Desired) error {
		if _, taken := d.Volume(v.Name); taken {
			return &machine.Error{Kind: machine.AlreadyExists, Field: "volume.name", Message: fmt.Sprintf("machine %s has a volume %q already", m.ID, v.Name)}
		}
		if most := min(maxVolumes, limit(s.o.Capabilities.MaxDisks, maxVolumes)); len(d.Volumes) >= most {
			return machine.Errorf(machine.Exhausted, "volume: machine %s has %d volumes, more are not possible", m.ID, most)
		}
		if err := checkDevice(d, v); err != nil {
			return err
		}
		d.Volumes = append(d.Volumes, v)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &iri.AttachVolumeResponse{}, nil
}

// checkDevice makes sure that no other volume has the device name of v.
func checkDevice(d *machine.Desired, v machine.Volume) error {
	for _, other := range d.Volumes {
		if v.Device != "" && other.Device == v.Device && other.Name != v.Name {
			return machine.InvalidField("volume.device", "%q is that of volume %q", v.Device, other.Name)
		}
	}
	return nil
}

// DetachVolume removes a volume from what is wanted. The status shows it until the guest has let go of it. The data of
// a local disk are kept for a while, for a volume of the same name and image to come back to.
func (s *Server) DetachVolume(ctx context.Context, req *iri.DetachVolumeRequest) (*iri.DetachVolumeResponse, error) {
	m, err := s.changeable(req.GetMachineId())
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	if name == "" {
		return nil, machine.InvalidField("name", "must not be empty")
	}
	err = s.respec(ctx, m, "volume detach asked for", name, func(d *machine.Desired) error {
		if _, found := d.Volume(name); !found {
			return machine.Errorf(machine.NotFound, "machine %s has no volume %q", m.ID, name)
		}
		d.Volumes = slices.DeleteFunc(d.Volumes, func(v machine.Volume) bool { return v.Name == name })
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &iri.DetachVolumeResponse{}, nil
}

// UpdateVolume changes a volume in its place: it may grow, and be reached in another way.
func (s *Server) UpdateVolume(ctx context.Context, req *iri.UpdateVolumeRequest) (*iri.UpdateVolumeResponse, error) {
	m, err := s.changeable(req.GetMachineId())
	if err != nil {
		return nil, err
	}
	v, err := s.volume("volume", req.GetVolume())
	if err != nil {
		return nil, err
	}
	made := m.Record.Volumes[v.Name].SizeBytes
	err = s.respec(ctx, m, "volume update asked for", v.Name, func(d *machine.Desired) error {
		old, found := d.Volume(v.Name)
		if !found {
			return machine.Errorf(machine.NotFound, "machine %s has no volume %q", m.ID, v.Name)
		}
		if reflect.DeepEqual(old, v.Clone()) {
			return nil
		}
		if err := checkUpdate(old, v, made); err != nil {
			return err
		}
		if err := checkDevice(d, v); err != nil {
			return err
		}
		d.Volumes[slices.IndexFunc(d.Volumes, func(o machine.Volume) bool { return o.Name == v.Name })] = v
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &iri.UpdateVolumeResponse{}, nil
}

// sectorSize is what sizes of disks are rounded up to, in bytes.
const sectorSize = 512

// checkUpdate refuses what no volume can become: of another kind, begun as another image, or smaller than it is or was to
// be. An image is what a disk began as: to take another would be to throw the disk away.
func checkUpdate(old, v machine.Volume, made int64) error {
	if (old.LocalDisk == nil) != (v.LocalDisk == nil) {
		return machine.InvalidField("volume", "a local disk cannot become a connection, nor the other way round")
	}
	if v.LocalDisk != nil && imageOf(v) != imageOf(old) {
		return machine.InvalidField("volume.local_disk.image", "%q cannot become %q: a disk keeps the image that it began as; attach another volume instead", imageOf(old), imageOf(v))
	}
	size, was := volume.WantedBytes(v), volume.WantedBytes(old)
	field := "volume.local_disk.size_bytes"
	if v.Connection != nil {
		if size == 0 { // not known
			return nil
		}
		field = "volume.connection.effective_storage_bytes"
	}
	switch {
	case size < was:
		return machine.InvalidField(field, "%d is less than the %d bytes that were asked for before; volumes do not shrink", size, was)
	case size > 0 && (size+sectorSize-1)/sectorSize*sectorSize < made && size != was:
		return machine.InvalidField(field, "%d is less than the %d bytes that the volume has; volumes do not shrink", size, made)
	}
	return nil
}

// imageOf returns the image that a local disk begins as; empty = none.
func imageOf(v machine.Volume) string {
	if v.LocalDisk.Image == nil {
		return ""
	}
	return *v.LocalDisk.Image
}

// AttachNetworkInterface adds a network interface, behind those that are there.
func (s *Server) AttachNetworkInterface(
	ctx context.Context, req *iri.AttachNetworkInterfaceRequest,
) (*iri.AttachNetworkInterfaceResponse, error) {
	const field = "network_interface"
	n, malformed := s.nic(field, req.GetNetworkInterface())
	for range maxTries {
		m, err := s.changeable(req.GetMachineId())
		if err != nil {
			return nil, err
		}
		if malformed != nil {
			return nil, malformed
		}
		if _, taken := m.Desired.NIC(n.Name); taken {
			return nil, &machine.Error{Kind: machine.AlreadyExists, Field: field + ".name", Message: fmt.Sprintf("machine %s has a network interface %q already", m.ID, n.Name)}
		}
		if most := min(maxNICs, limit(s.o.Capabilities.MaxNICs, maxNICs)); len(m.Desired.NICs) >= most {
			return nil, machine.Errorf(machine.Exhausted, "%s: machine %s has %d network interfaces, more are not possible", field, m.ID, most)
		}
		all := append(slices.Clone(m.Desired.NICs), n)
		if err := s.checkOneMore(field, m.ID, all); err != nil {
			return nil, err
		}
		err = s.respec(ctx, m, "network interface attach asked for", n.Name, func(d *machine.Desired) error {
			if !reflect.DeepEqual(d.NICs, m.Desired.NICs) {
				return errRaced
			}
			d.NICs = all
			return nil
		})
		if errors.Is(err, errRaced) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &iri.AttachNetworkInterfaceResponse{}, nil
	}
	return nil, machine.Errorf(machine.Conflict, "the network interfaces of machine %s are changed by others all the time", req.GetMachineId())
}

// maxTries bounds how often what was checked outside of the store is checked again.
const maxTries = 10

// errRaced means that somebody else changed what was checked.
var errRaced = errors.New("changed meanwhile")

// checkOneMore asks the network plugin what it thinks of a machine's interfaces with a new one, the last.
func (s *Server) checkOneMore(field, machineID string, all []machine.NetworkInterface) error {
	err := s.askNetwork(machineID, all)
	var bad *network.FieldError
	switch {
	case !errors.As(err, &bad):
		return err
	case bad.Index != len(all)-1: // it does not go together with one that is there
		return machine.InvalidField(field, "%v", bad)
	case bad.Field == "":
		return machine.InvalidField(field, "%s", bad.Message)
	}
	return machine.InvalidField(field+"."+bad.Field, "%s", bad.Message)
}

// DetachNetworkInterface removes a network interface from what is wanted. The status shows it until the guest has let
// go of it.
func (s *Server) DetachNetworkInterface(
	ctx context.Context, req *iri.DetachNetworkInterfaceRequest,
) (*iri.DetachNetworkInterfaceResponse, error) {
	m, err := s.changeable(req.GetMachineId())
	if err != nil {
		return nil, err
	}
	name := req.GetName()
	if name == "" {
		return nil, machine.InvalidField("name", "must not be empty")
	}
	err = s.respec(ctx, m, "network interface detach asked for", name, func(d *machine.Desired) error {
		if _, found := d.NIC(name); !found {
			return machine.Errorf(machine.NotFound, "machine %s has no network interface %q", m.ID, name)
		}
		d.NICs = slices.DeleteFunc(d.NICs, func(n machine.NetworkInterface) bool { return n.Name == name })
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &iri.DetachNetworkInterfaceResponse{}, nil
}

// changeable returns the machine a request names, unless it is being deleted.
func (s *Server) changeable(id string) (*machine.Machine, error) {
	m, err := s.find(id)
	if err == nil && m.Desired.Deleting() {
		err = beingDeleted(id)
	}
	return m, err
}

func beingDeleted(id string) error {
	return machine.Errorf(machine.FailedPrecondition, "machine %s is being deleted", id)
}

// respec changes the devices of a machine's spec. The generation rises if fn changed anything.
func (s *Server) respec(ctx context.Context, m *machine.Machine, what, name string, fn func(*machine.Desired) error) error {
	stored, err := s.o.Store.UpdateDesired(ctx, m.ID, 0, func(d *machine.Desired) error {
		if d.Deleting() {
			return beingDeleted(m.ID)
		}
		before := d.Clone()
		if err := fn(d); err != nil {
			return err
		}
		if !reflect.DeepEqual(&before, d) {
			d.Respec()
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.o.Logger.Info(what, "machine", m.ID, "device", name, "generation", stored.Desired.Generation)
	return nil
}
