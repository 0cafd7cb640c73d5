// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package rtnl speaks the few words of Linux's rtnetlink that network plugins need: devices and their changes, bridge
// ports, addresses, neighbours. It exists because those words are fewer than a library's. It works in the network
// namespace of the calling thread, keeps nothing between calls, and must never decide what to change.
package rtnl

import "net"

// Link is a network device.
type Link struct {
	Index  int
	Name   string
	Alias  string
	Kind   string // "bridge", "tun", "veth", "macvtap"; empty for hardware
	Lower  int    // index of the device that it is on top of; 0 = none
	Master int    // index of the bridge or bond it belongs to; 0 = none
	MTU    int
	MAC    net.HardwareAddr
	Up     bool // administratively
	// Carrier is, for a tap, whether somebody holds it open.
	Carrier bool
	Tun     Tun
	Port    Port
}

// Tun is what a device of kind "tun" is beside.
type Tun struct {
	Tap        bool // frames, not packets
	MultiQueue bool
	VNetHeader bool
	Persistent bool
	Owner      int // user id that may open it; -1 = any
}

// Port is how a bridge treats one of its ports.
type Port struct {
	Isolated bool // exchanges frames only with ports that are not
	Protect  bool // never becomes the way to the root of the spanning tree
}

// Change is what is to be different about a device; nil and zero leave as it is.
type Change struct {
	Name   string
	Alias  *string
	Master *int // 0 = out of the bridge
	MTU    int
	Up     *bool
	// NoAddresses keeps the kernel from giving the device IPv6 addresses by itself.
	NoAddresses bool
}

// Event says that a device changed or is gone, or that there is another IPv4 default route. Lost means that some events
// were missed: everything has to be looked at again.
type Event struct {
	Link  Link
	Gone  bool
	Route bool
	Lost  bool
}
