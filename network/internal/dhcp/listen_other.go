// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package dhcp

import (
	"errors"
	"net"
)

// Listen fails.
func Listen(string) (net.PacketConn, error) { return nil, errors.New("the DHCP server needs Linux") }
