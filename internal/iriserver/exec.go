// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"context"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// Exec answers with a URL of a running machine's console. It never answers ResourceExhausted, on which the poollet
// panics.
func (s *Server) Exec(_ context.Context, req *iri.ExecRequest) (*iri.ExecResponse, error) {
	if s.o.Exec == nil {
		return nil, machine.Errorf(machine.Unimplemented,
			"Exec is not possible: its server is off (streaming.address); use the console command on the host")
	}
	m, err := s.find(req.GetMachineId())
	if err != nil {
		return nil, err
	}
	if m.Record.State != machine.Running {
		return nil, machine.Errorf(machine.FailedPrecondition, "machine %s is not running", m.ID)
	}
	url, err := s.o.Exec.URL(m.ID)
	if machine.IsKind(err, machine.Exhausted) {
		err = machine.Wrap(machine.Unavailable, err, "issue a token")
	}
	if err != nil {
		return nil, err
	}
	return &iri.ExecResponse{Url: url}, nil
}
