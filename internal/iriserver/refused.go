// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"context"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// What this version cannot do is refused by name, so that no client takes silence for success.

// AttachVolume is refused.
func (s *Server) AttachVolume(context.Context, *iri.AttachVolumeRequest) (*iri.AttachVolumeResponse, error) {
	return nil, refused("AttachVolume", "volumes are fixed when a machine is created")
}

// DetachVolume is refused.
func (s *Server) DetachVolume(context.Context, *iri.DetachVolumeRequest) (*iri.DetachVolumeResponse, error) {
	return nil, refused("DetachVolume", "volumes are fixed when a machine is created")
}

// UpdateVolume is refused.
func (s *Server) UpdateVolume(context.Context, *iri.UpdateVolumeRequest) (*iri.UpdateVolumeResponse, error) {
	return nil, refused("UpdateVolume", "volumes are fixed when a machine is created")
}

// AttachNetworkInterface is refused.
func (s *Server) AttachNetworkInterface(
	context.Context, *iri.AttachNetworkInterfaceRequest,
) (*iri.AttachNetworkInterfaceResponse, error) {
	return nil, refused("AttachNetworkInterface", "network interfaces are fixed when a machine is created")
}

// DetachNetworkInterface is refused.
func (s *Server) DetachNetworkInterface(
	context.Context, *iri.DetachNetworkInterfaceRequest,
) (*iri.DetachNetworkInterfaceResponse, error) {
	return nil, refused("DetachNetworkInterface", "network interfaces are fixed when a machine is created")
}

func refused(call, why string) error {
	return machine.Errorf(machine.Unimplemented, "%s is not supported by this version: %s", call, why)
}
