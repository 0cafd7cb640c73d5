// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"context"
	"net"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/guestagent"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

var _ vmm.GuestAgentDialer = (*conn)(nil)

// DialGuestAgent connects to port guestagent.VsockPort of the guest. It takes no turn: a guest that does not answer
// must not keep anybody from cutting its power.
func (v *conn) DialGuestAgent(ctx context.Context) (net.Conn, error) {
	info, defined, err := v.identify(ctx)
	switch {
	case err != nil:
		return nil, err
	case !defined || info.Config.Vsock == nil:
		return nil, machine.Errorf(machine.Unavailable, "the VM was defined without a channel for a guest agent")
	}
	return guestagent.DialVsock(ctx, v.paths.vsock, guestagent.VsockPort)
}
