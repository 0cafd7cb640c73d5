// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Numbers of include/uapi/linux/if_link.h that x/sys does not have.
const (
	iflaMacvlanMode   = 1
	macvlanModeBridge = 4
)

// AddMacvtap makes a macvtap, in bridge mode, on top of another device; unix.EEXIST if a device of that name exists.
func AddMacvtap(ctx context.Context, name string, lower int, mac net.HardwareAddr) error {
	b := append(header(0, 0, 0), attr(unix.IFLA_IFNAME, zeroEnded(name))...)
	b = append(b, attr(unix.IFLA_LINK, number(lower))...)
	b = append(b, attr(unix.IFLA_ADDRESS, mac)...)
	b = append(b, nested(unix.IFLA_LINKINFO, attr(unix.IFLA_INFO_KIND, zeroEnded("macvtap")),
		nested(unix.IFLA_INFO_DATA, attr(iflaMacvlanMode, number(macvlanModeBridge))))...)
	if _, err := request(ctx, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, b); err != nil {
		return fmt.Errorf("make macvtap %s: %w", name, err)
	}
	return nil
}
