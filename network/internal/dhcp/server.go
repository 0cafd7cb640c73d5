// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package dhcp is a small DHCPv4 server (RFC 2131) with fixed leases. It exists so that guests on a network of one host
// get the addresses that were decided for them, without another daemon. It must never answer a client that it does not
// know, nor offer an address that is not that client's.
package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// Lease is what one client is told of itself.
type Lease struct {
	IP       netip.Addr
	Hostname string // may be empty
	MTU      int    // 0 = not told
}

// Options is what a server is made of.
type Options struct {
	Subnet netip.Prefix
	Server netip.Addr    // the host's address in the subnet
	Router netip.Addr    // told to clients; invalid = none
	DNS    []netip.Addr  // IPv4, told to clients
	Time   time.Duration // of a lease; whole seconds
	// Lookup finds a client's lease.
	Lookup func(mac net.HardwareAddr) (Lease, bool)
	// Neighbour lets the host reach a client that has no address yet, and so cannot answer ARP. If nil or if it fails,
	// the answer goes to everybody.
	Neighbour func(ctx context.Context, ip netip.Addr, mac net.HardwareAddr) error
	Logger    *slog.Logger
}

const (
	serverPort = 67
	clientPort = 68
)

// Serve answers what comes in on conn until ctx ends; it closes conn.
func Serve(ctx context.Context, conn net.PacketConn, o Options) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	buf := make([]byte, 1500)
	for {
		n, _, err := conn.ReadFrom(buf)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		a, ok := o.answer(buf[:n])
		if !ok {
			continue
		}
		to := netip.AddrPortFrom(o.reachable(ctx, a), clientPort)
		if _, err := conn.WriteTo(a.packet, net.UDPAddrFromAddrPort(to)); err != nil && !errors.Is(err, net.ErrClosed) {
			// A client that gets no answer asks again.
			o.Logger.Debug("dhcp: answer not sent", "mac", a.mac.String(), "error", err)
			continue
		}
		o.Logger.Debug("dhcp: answered", "mac", a.mac.String(), "kind", a.kind, "to", to.String())
	}
}

// answer is one packet for a client.
type answer struct {
	packet []byte
	kind   byte
	mac    net.HardwareAddr
	to     netip.Addr // where the client is reached; 255.255.255.255 = everywhere
	fresh  bool       // the client does not have that address yet
}

var everybody = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func (o *Options) reachable(ctx context.Context, a answer) netip.Addr {
	if !a.fresh {
		return a.to
	}
	if o.Neighbour == nil || o.Neighbour(ctx, a.to, a.mac) != nil {
		return everybody
	}
	return a.to
}

// answer decides what to say to a packet; false for nothing.
func (o *Options) answer(raw []byte) (answer, bool) {
	p, ok := parse(raw)
	if !ok || p.forward {
		return answer{}, false
	}
	lease, known := o.Lookup(p.mac)
	if !known {
		return answer{}, false
	}
	switch p.kind {
	case discover:
		return o.give(p, offer, lease), true
	case request:
		return o.requested(p, lease)
	case inform:
		// The client has an address and wants to know the rest.
		return answer{packet: finish(o.network(p.reply(ack, o.Server), lease)), kind: ack, mac: p.mac, to: p.client}, !p.client.IsUnspecified()
	default: // DECLINE and RELEASE change nothing about a fixed lease
		return answer{}, false
	}
}

// requested distinguishes as RFC 2131, 4.3.2 does: a client that chose an offer names the server and the address, one
// that restarts names the address, one that renews has it.
func (o *Options) requested(p packet, lease Lease) (answer, bool) {
	if p.server.IsValid() && p.server != o.Server {
		return answer{}, false // it chose another server
	}
	wants := p.wants
	if !wants.IsValid() {
		wants = p.client
	}
	if wants != lease.IP {
		return answer{packet: finish(p.reply(nak, o.Server)), kind: nak, mac: p.mac, to: everybody}, true
	}
	return o.give(p, ack, lease), true
}

func (o *Options) give(p packet, kind byte, lease Lease) answer {
	b := p.reply(kind, o.Server)
	copy(b[atYours:], lease.IP.AsSlice())
	copy(b[atClient:], p.client.AsSlice())
	seconds := uint32(o.Time / time.Second)
	b = option(b, optionLeaseTime, binary.BigEndian.AppendUint32(nil, seconds))
	b = option(b, optionRenewal, binary.BigEndian.AppendUint32(nil, seconds/2))
	b = option(b, optionRebinding, binary.BigEndian.AppendUint32(nil, seconds/8*7))
	a := answer{packet: finish(o.network(b, lease)), kind: kind, mac: p.mac}
	switch {
	case !p.client.IsUnspecified():
		a.to = p.client
	case p.wantsBroadcast():
		a.to = everybody
	default:
		a.to, a.fresh = lease.IP, true
	}
	return a
}

// network says what is true for the whole network, and the client's name.
func (o *Options) network(b []byte, lease Lease) []byte {
	b = option(b, optionMask, net.CIDRMask(o.Subnet.Bits(), 32))
	if o.Router.IsValid() {
		b = option(b, optionRouter, o.Router.AsSlice())
	}
	var dns []byte
	for _, d := range o.DNS {
		dns = append(dns, d.AsSlice()...)
	}
	b = option(b, optionDNS, dns)
	b = option(b, optionHostname, []byte(lease.Hostname))
	if lease.MTU > 0 {
		b = option(b, optionMTU, binary.BigEndian.AppendUint16(nil, uint16(lease.MTU)))
	}
	return b
}
