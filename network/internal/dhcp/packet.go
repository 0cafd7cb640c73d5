// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Places in a packet of RFC 2131, figure 1.
const (
	atOp, atHType, atHLen, atXID, atFlags        = 0, 1, 2, 4, 10
	atClient, atYours, atServer, atRelay         = 12, 16, 20, 24
	atHardware, atOptions                        = 28, 240
	opRequest, opReply, ethernet                 = 1, 2, 1
	flagBroadcast                         uint16 = 1 << 15
	magic                                 uint32 = 0x63825363
	minReply                                     = 300 // what BOOTP clients expect at least
)

// Options of RFC 2132.
const (
	optionMask        = 1
	optionRouter      = 3
	optionDNS         = 6
	optionHostname    = 12
	optionMTU         = 26
	optionRequestedIP = 50
	optionLeaseTime   = 51
	optionType        = 53
	optionServer      = 54
	optionRenewal     = 58
	optionRebinding   = 59
	optionPad         = 0
	optionEnd         = 255
)

// Messages of RFC 2132, option 53.
const (
	discover = 1
	offer    = 2
	request  = 3
	ack      = 5
	nak      = 6
	inform   = 8
)

// packet is what of a client's packet counts.
type packet struct {
	raw     []byte
	kind    byte
	mac     net.HardwareAddr
	client  netip.Addr // ciaddr: the address that the client has; 0.0.0.0 = none
	wants   netip.Addr // option 50; invalid = not given
	server  netip.Addr // option 54; invalid = not given
	forward bool       // came through a relay
}

// parse reads a client's packet; false if it is none, or broken.
func parse(b []byte) (packet, bool) {
	if len(b) < atOptions || b[atOp] != opRequest || b[atHType] != ethernet || b[atHLen] != 6 ||
		binary.BigEndian.Uint32(b[atOptions-4:]) != magic {
		return packet{}, false
	}
	p := packet{
		raw: b, mac: net.HardwareAddr(b[atHardware : atHardware+6]), client: netip.AddrFrom4([4]byte(b[atClient:])),
		forward: binary.BigEndian.Uint32(b[atRelay:]) != 0,
	}
	for rest := b[atOptions:]; len(rest) > 0 && rest[0] != optionEnd; {
		if rest[0] == optionPad {
			rest = rest[1:]
			continue
		}
		if len(rest) < 2 || len(rest) < 2+int(rest[1]) {
			return packet{}, false
		}
		value := rest[2 : 2+rest[1]]
		switch {
		case rest[0] == optionType && len(value) == 1:
			p.kind = value[0]
		case rest[0] == optionRequestedIP && len(value) == 4:
			p.wants = netip.AddrFrom4([4]byte(value))
		case rest[0] == optionServer && len(value) == 4:
			p.server = netip.AddrFrom4([4]byte(value))
		}
		rest = rest[2+rest[1]:]
	}
	return p, p.kind != 0
}

// reply begins an answer to p.
func (p packet) reply(kind byte, server netip.Addr) []byte {
	b := make([]byte, atOptions, minReply)
	b[atOp], b[atHType], b[atHLen] = opReply, ethernet, 6
	copy(b[atXID:], p.raw[atXID:atXID+4])
	copy(b[atFlags:], p.raw[atFlags:atFlags+2])
	copy(b[atHardware:], p.mac)
	binary.BigEndian.PutUint32(b[atOptions-4:], magic)
	return option(option(b, optionType, []byte{kind}), optionServer, server.AsSlice())
}

func (p packet) wantsBroadcast() bool {
	return binary.BigEndian.Uint16(p.raw[atFlags:])&flagBroadcast != 0
}

func option(b []byte, kind byte, value []byte) []byte {
	if len(value) == 0 || len(value) > 255 {
		return b
	}
	return append(append(b, kind, byte(len(value))), value...)
}

// finish ends the options and fills up.
func finish(b []byte) []byte {
	b = append(b, optionEnd)
	if len(b) < minReply {
		b = append(b, make([]byte, minReply-len(b))...)
	}
	return b
}
