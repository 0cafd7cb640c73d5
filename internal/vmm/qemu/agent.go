// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"net"
	"path/filepath"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/guestagent"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

var _ vmm.GuestAgentDialer = (*virtualMachine)(nil)

// DialGuestAgent connects to the guest agent's port. QEMU knows whether somebody in the guest holds the port open, so
// that a guest without an agent is found out without waiting for its silence.
func (v *virtualMachine) DialGuestAgent(ctx context.Context) (net.Conn, error) {
	if err := v.identify(ctx); err != nil {
		return nil, err
	}
	var list []struct {
		Label string `json:"label"`
		Open  bool   `json:"frontend-open"`
	}
	if err := v.ask(ctx, "query-chardev", nil, &list); err != nil {
		return nil, unavailable(fmt.Errorf("ask for the guest agent's port: %w", err))
	}
	for _, c := range list {
		switch {
		case c.Label != agentChardev:
		case !c.Open:
			return nil, machine.Errorf(machine.Unavailable, "nobody in the guest has opened the port %s", agentPort)
		default:
			return guestagent.DialUnix(ctx, filepath.Join(v.ref.RuntimeDir, agentSocket))
		}
	}
	return nil, machine.Errorf(machine.Unavailable, "QEMU was started without a port for a guest agent")
}
