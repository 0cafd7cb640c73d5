// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Listen receives what clients send on a device, and on no other.
func Listen(device string) (net.PacketConn, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open DHCP socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "dhcp")
	defer func() { _ = f.Close() }() // FilePacketConn has a descriptor of its own
	for _, set := range []func() error{
		// Another server on another device must not be in the way, so the device is named first.
		func() error { return unix.BindToDevice(fd, device) },
		func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) },
		func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1) },
		func() error { return unix.Bind(fd, &unix.SockaddrInet4{Port: serverPort}) },
	} {
		if err := set(); err != nil {
			return nil, fmt.Errorf("set up DHCP socket on %s: %w", device, err)
		}
	}
	conn, err := net.FilePacketConn(f)
	if err != nil {
		return nil, fmt.Errorf("set up DHCP socket on %s: %w", device, err)
	}
	return conn, nil
}
