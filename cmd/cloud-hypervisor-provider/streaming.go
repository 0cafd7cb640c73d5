// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console/exec"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/iriserver"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
)

// runs says of a machine whether its guest ran when it was last looked at, so that its console will be opened.
func runs(st *store.Store) func(machineID string) bool {
	return func(machineID string) bool {
		m, err := st.Get(machineID)
		return err == nil && m.Record.State == machine.Running
	}
}

// newExec makes the server of remote consoles, unless it is off; the answer is nil then.
func (p *parts) newExec(cfg *config.Config, log *slog.Logger) (iriserver.Exec, error) {
	c := cfg.Streaming
	if c.Address == "" {
		return nil, nil
	}
	server, err := exec.New(exec.Options{
		Attacher: p.consoles, Address: c.Address, BaseURL: c.BaseURL,
		TLSCertFile: c.TLSCertFile, TLSKeyFile: c.TLSKeyFile, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	p.exec = server
	return server, nil
}

// serveExec serves remote consoles until ctx ends.
func (p *parts) serveExec(ctx context.Context) error {
	if p.exec == nil {
		return nil
	}
	return p.exec.Serve(ctx)
}
