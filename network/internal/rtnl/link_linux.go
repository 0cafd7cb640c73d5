// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Numbers of include/uapi/linux/if_link.h that x/sys does not have.
const (
	iflaTunOwner, iflaTunType, iflaTunVNetHdr, iflaTunPersist, iflaTunMultiQueue = 1, 3, 5, 6, 7
	iflaPortProtect, iflaPortIsolated                                            = 6, 33
	iflaInet6AddrGenMode                                                         = 8
	addrGenModeNone                                                              = 1
)

// Links returns the devices of the namespace.
func Links(ctx context.Context) ([]Link, error) {
	raw, err := request(ctx, unix.RTM_GETLINK, unix.NLM_F_DUMP, make([]byte, unix.SizeofIfInfomsg))
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	links := make([]Link, 0, len(raw))
	for _, b := range raw {
		if l, ok := parseLink(b); ok {
			links = append(links, l)
		}
	}
	return links, nil
}

// ByName returns a device; fs.ErrNotExist if there is none of that name.
func ByName(ctx context.Context, name string) (Link, error) {
	payload := append(make([]byte, unix.SizeofIfInfomsg), attr(unix.IFLA_IFNAME, zeroEnded(name))...)
	raw, err := request(ctx, unix.RTM_GETLINK, 0, payload)
	if errors.Is(err, unix.ENODEV) {
		return Link{}, fmt.Errorf("network device %s: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return Link{}, fmt.Errorf("look up network device %s: %w", name, err)
	}
	if len(raw) == 1 {
		if l, ok := parseLink(raw[0]); ok {
			return l, nil
		}
	}
	return Link{}, fmt.Errorf("look up network device %s: unexpected answer", name)
}

// parseLink reads the payload of RTM_NEWLINK; false if it is of another family than the device itself.
func parseLink(b []byte) (Link, bool) {
	if len(b) < unix.SizeofIfInfomsg || b[0] != unix.AF_UNSPEC {
		return Link{}, false
	}
	flags := binary.NativeEndian.Uint32(b[8:])
	l := Link{
		Index: int(int32(binary.NativeEndian.Uint32(b[4:]))), Up: flags&unix.IFF_UP != 0, Carrier: flags&unix.IFF_LOWER_UP != 0,
		Tun: Tun{Owner: -1},
	}
	for _, a := range attributes(b[unix.SizeofIfInfomsg:]) {
		switch a.kind {
		case unix.IFLA_IFNAME:
			l.Name = text(a.value)
		case unix.IFLA_IFALIAS:
			l.Alias = text(a.value)
		case unix.IFLA_MASTER:
			l.Master = value(a.value)
		case unix.IFLA_LINK:
			l.Lower = value(a.value)
		case unix.IFLA_MTU:
			l.MTU = value(a.value)
		case unix.IFLA_ADDRESS:
			l.MAC = net.HardwareAddr(append([]byte(nil), a.value...))
		case unix.IFLA_LINKINFO:
			parseInfo(&l, a.value)
		}
	}
	return l, true
}

func parseInfo(l *Link, b []byte) {
	var data, port []byte
	portKind := ""
	for _, a := range attributes(b) {
		switch a.kind {
		case unix.IFLA_INFO_KIND:
			l.Kind = text(a.value)
		case unix.IFLA_INFO_DATA:
			data = a.value
		case unix.IFLA_INFO_SLAVE_KIND:
			portKind = text(a.value)
		case unix.IFLA_INFO_SLAVE_DATA:
			port = a.value
		}
	}
	if l.Kind == "tun" {
		for _, a := range attributes(data) {
			switch a.kind {
			case iflaTunOwner:
				l.Tun.Owner = value(a.value)
			case iflaTunType:
				l.Tun.Tap = value(a.value) == unix.IFF_TAP
			case iflaTunVNetHdr:
				l.Tun.VNetHeader = value(a.value) != 0
			case iflaTunPersist:
				l.Tun.Persistent = value(a.value) != 0
			case iflaTunMultiQueue:
				l.Tun.MultiQueue = value(a.value) != 0
			}
		}
	}
	if portKind == "bridge" {
		for _, a := range attributes(port) {
			switch a.kind {
			case iflaPortProtect:
				l.Port.Protect = value(a.value) != 0
			case iflaPortIsolated:
				l.Port.Isolated = value(a.value) != 0
			}
		}
	}
}

func header(index int, flags, change uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], flags)
	binary.NativeEndian.PutUint32(b[12:], change)
	return b
}

// Set changes a device.
func Set(ctx context.Context, index int, c Change) error {
	var flags, change uint32
	if c.Up != nil {
		change = unix.IFF_UP
		if *c.Up {
			flags = unix.IFF_UP
		}
	}
	b := header(index, flags, change)
	if c.Name != "" {
		b = append(b, attr(unix.IFLA_IFNAME, zeroEnded(c.Name))...)
	}
	if c.Alias != nil {
		b = append(b, attr(unix.IFLA_IFALIAS, []byte(*c.Alias))...)
	}
	if c.Master != nil {
		b = append(b, attr(unix.IFLA_MASTER, number(*c.Master))...)
	}
	if c.MTU != 0 {
		b = append(b, attr(unix.IFLA_MTU, number(c.MTU))...)
	}
	if c.NoAddresses {
		b = append(b, nested(unix.IFLA_AF_SPEC, nested(unix.AF_INET6, attr(iflaInet6AddrGenMode, []byte{addrGenModeNone})))...)
	}
	if _, err := request(ctx, unix.RTM_NEWLINK, 0, b); err != nil {
		return fmt.Errorf("change network device: %w", err)
	}
	return nil
}

// SetPort changes how the bridge treats the device, which must be a port of one.
func SetPort(ctx context.Context, index int, p Port) error {
	b := append(header(index, 0, 0), nested(unix.IFLA_LINKINFO,
		attr(unix.IFLA_INFO_SLAVE_KIND, zeroEnded("bridge")),
		nested(unix.IFLA_INFO_SLAVE_DATA, attr(iflaPortProtect, flagByte(p.Protect)), attr(iflaPortIsolated, flagByte(p.Isolated))))...)
	if _, err := request(ctx, unix.RTM_NEWLINK, 0, b); err != nil {
		return fmt.Errorf("change bridge port: %w", err)
	}
	return nil
}

// AddBridge makes a bridge; unix.EEXIST if a device of that name exists.
func AddBridge(ctx context.Context, name string, mac net.HardwareAddr) error {
	b := append(header(0, 0, 0), attr(unix.IFLA_IFNAME, zeroEnded(name))...)
	b = append(b, attr(unix.IFLA_ADDRESS, mac)...)
	b = append(b, nested(unix.IFLA_LINKINFO, attr(unix.IFLA_INFO_KIND, zeroEnded("bridge")))...)
	if _, err := request(ctx, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, b); err != nil {
		return fmt.Errorf("make bridge %s: %w", name, err)
	}
	return nil
}

// Delete removes a device.
func Delete(ctx context.Context, index int) error {
	if _, err := request(ctx, unix.RTM_DELLINK, 0, header(index, 0, 0)); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove network device: %w", err)
	}
	return nil
}

// AddAddress gives a device an IPv4 address, if it has it not yet.
func AddAddress(ctx context.Context, index int, p netip.Prefix) error {
	addr := p.Addr().AsSlice()
	b := make([]byte, unix.SizeofIfAddrmsg)
	b[0], b[1] = unix.AF_INET, byte(p.Bits())
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	b = append(b, attr(unix.IFA_LOCAL, addr)...)
	b = append(b, attr(unix.IFA_ADDRESS, addr)...)
	_, err := request(ctx, unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, b)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s: %w", p, err)
	}
	return nil
}

// SetNeighbour tells which hardware address an IPv4 address has, until the kernel learns better.
func SetNeighbour(ctx context.Context, index int, ip netip.Addr, mac net.HardwareAddr) error {
	b := make([]byte, unix.SizeofNdMsg)
	b[0] = unix.AF_INET
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint16(b[8:], unix.NUD_STALE)
	b = append(b, attr(unix.NDA_DST, ip.AsSlice())...)
	b = append(b, attr(unix.NDA_LLADDR, mac)...)
	if _, err := request(ctx, unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, b); err != nil {
		return fmt.Errorf("set neighbour: %w", err)
	}
	return nil
}

// DefaultRoutes returns the devices that IPv4 default routes of the main table lead through.
func DefaultRoutes(ctx context.Context) ([]int, error) {
	b := make([]byte, unix.SizeofRtMsg)
	b[0] = unix.AF_INET
	raw, err := request(ctx, unix.RTM_GETROUTE, unix.NLM_F_DUMP, b)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var out []int
	for _, r := range raw {
		if len(r) < unix.SizeofRtMsg || r[0] != unix.AF_INET || r[1] != 0 || r[4] != unix.RT_TABLE_MAIN || r[7] != unix.RTN_UNICAST {
			continue
		}
		for _, a := range attributes(r[unix.SizeofRtMsg:]) {
			if a.kind == unix.RTA_OIF {
				out = append(out, value(a.value))
			}
		}
	}
	return out, nil
}
