// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

var (
	known   = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	gateway = netip.MustParseAddr("10.1.2.1")
	mine    = netip.MustParseAddr("10.1.2.5")
)

func options() *Options {
	return &Options{
		Subnet: netip.MustParsePrefix("10.1.2.0/24"), Server: gateway, Router: gateway,
		DNS: []netip.Addr{netip.MustParseAddr("9.9.9.9"), netip.MustParseAddr("1.1.1.1")}, Time: time.Hour,
		Lookup: func(mac net.HardwareAddr) (Lease, bool) {
			return Lease{IP: mine, Hostname: "web", MTU: 1450}, mac.String() == known.String()
		},
		Logger: slog.New(slog.DiscardHandler),
	}
}

// client makes a client's packet; each change is made to the fixed part or adds options.
func client(kind byte, changes ...func([]byte) []byte) []byte {
	b := make([]byte, atOptions)
	b[atOp], b[atHType], b[atHLen] = opRequest, ethernet, 6
	binary.BigEndian.PutUint32(b[atXID:], 0xcafe)
	copy(b[atHardware:], known)
	binary.BigEndian.PutUint32(b[atOptions-4:], magic)
	b = option(b, optionType, []byte{kind})
	for _, change := range changes {
		b = change(b)
	}
	return append(b, optionEnd)
}

func with(kind byte, value ...byte) func([]byte) []byte {
	return func(b []byte) []byte { return option(b, kind, value) }
}

func at(place int, value ...byte) func([]byte) []byte {
	return func(b []byte) []byte { copy(b[place:], value); return b }
}

// told reads an answer's options.
func told(t *testing.T, b []byte) map[byte][]byte {
	t.Helper()
	out := map[byte][]byte{}
	for rest := b[atOptions:]; rest[0] != optionEnd; rest = rest[2+rest[1]:] {
		out[rest[0]] = rest[2 : 2+rest[1]]
	}
	return out
}

func TestAClientGetsItsOwnLeaseAndNoOther(t *testing.T) {
	ip, other := mine.AsSlice(), []byte{10, 1, 2, 99}
	for name, c := range map[string]struct {
		packet []byte
		kind   byte // 0 = no answer
		to     string
		fresh  bool
	}{
		"looks for servers":                     {client(discover), offer, "10.1.2.5", true},
		"looks for servers and wants another":   {client(discover, with(optionRequestedIP, other...)), offer, "10.1.2.5", true},
		"cannot receive before it has one":      {client(discover, at(atFlags, 0x80)), offer, "255.255.255.255", false},
		"takes the offer":                       {client(request, with(optionServer, 10, 1, 2, 1), with(optionRequestedIP, ip...)), ack, "10.1.2.5", true},
		"takes another server's offer":          {client(request, with(optionServer, 10, 1, 2, 2), with(optionRequestedIP, other...)), 0, "", false},
		"takes what was not offered":            {client(request, with(optionServer, 10, 1, 2, 1), with(optionRequestedIP, other...)), nak, "255.255.255.255", false},
		"comes back":                            {client(request, with(optionRequestedIP, ip...)), ack, "10.1.2.5", true},
		"comes back with an address of before":  {client(request, with(optionRequestedIP, other...)), nak, "255.255.255.255", false},
		"renews":                                {client(request, at(atClient, ip...)), ack, "10.1.2.5", false},
		"renews what is not its own any more":   {client(request, at(atClient, other...)), nak, "255.255.255.255", false},
		"has an address and asks for the rest":  {client(inform, at(atClient, 10, 1, 2, 77)), ack, "10.1.2.77", false},
		"asks for the rest without an address":  {client(inform), 0, "", false},
		"lets go":                               {client(7, at(atClient, ip...)), 0, "", false},
		"is not known":                          {client(discover, at(atHardware, 2, 0, 0, 0, 0, 9)), 0, "", false},
		"comes through a relay":                 {client(discover, at(atRelay, 10, 1, 2, 200)), 0, "", false},
		"is a server":                           {client(discover, at(atOp, opReply)), 0, "", false},
		"speaks BOOTP only":                     {append(client(0)[:atOptions], optionEnd), 0, "", false},
		"is cut off":                            {client(discover)[:200], 0, "", false},
		"is cut off in an option":               {client(discover, with(optionHostname, 1, 2, 3))[:atOptions+5], 0, "", false},
		"has no magic":                          {client(discover, at(atOptions-4, 0)), 0, "", false},
		"has hardware that is not the Ethernet": {client(discover, at(atHLen, 8)), 0, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			a, ok := options().answer(c.packet)
			if ok != (c.kind != 0) {
				t.Fatalf("answered: %v", ok)
			}
			if !ok {
				return
			}
			if a.kind != c.kind || a.to.String() != c.to || a.fresh != c.fresh {
				t.Errorf("%d to %s, fresh: %v", a.kind, a.to, a.fresh)
			}
			if got := binary.BigEndian.Uint32(a.packet[atXID:]); got != 0xcafe {
				t.Errorf("transaction %x", got)
			}
			yours := netip.AddrFrom4([4]byte(a.packet[atYours:]))
			if want := a.kind == offer || a.kind == ack && name != "has an address and asks for the rest"; want != (yours == mine) {
				t.Errorf("address %s", yours)
			}
		})
	}
}

func TestTheLeaseSaysAllThatTheNetworkNeeds(t *testing.T) {
	a, _ := options().answer(client(discover))
	want := map[byte][]byte{
		optionType: {offer}, optionServer: {10, 1, 2, 1}, optionLeaseTime: {0, 0, 14, 16}, optionRenewal: {0, 0, 7, 8},
		optionRebinding: {0, 0, 12, 78}, optionMask: {255, 255, 255, 0}, optionRouter: {10, 1, 2, 1},
		optionDNS: {9, 9, 9, 9, 1, 1, 1, 1}, optionHostname: []byte("web"), optionMTU: {5, 170},
	}
	if diff := cmp.Diff(want, told(t, a.packet)); diff != "" {
		t.Error(diff)
	}
	o := options()
	o.Router, o.DNS = netip.Addr{}, nil
	a, _ = o.answer(client(inform, at(atClient, 10, 1, 2, 5)))
	got := told(t, a.packet)
	for _, kind := range []byte{optionRouter, optionDNS, optionLeaseTime} {
		if _, ok := got[kind]; ok {
			t.Errorf("option %d is told", kind)
		}
	}
}

func TestAnyBytesAreSurvived(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "packet")
		if rapid.Bool().Draw(t, "plausible") && len(b) > atOptions {
			copy(b, client(discover)[:atOptions])
		}
		_, _ = options().answer(b)
	})
}

// loop is a client's side of a socket.
type loop struct {
	net.PacketConn
	in  chan []byte
	out chan string
}

func (l *loop) ReadFrom(b []byte) (int, net.Addr, error) {
	p, ok := <-l.in
	if !ok {
		return 0, nil, net.ErrClosed
	}
	return copy(b, p), nil, nil
}

func (l *loop) WriteTo(_ []byte, to net.Addr) (int, error) { l.out <- to.String(); return 0, nil }

func (l *loop) Close() error {
	defer func() { _ = recover() }() // closed twice, as Serve may
	close(l.in)
	return nil
}

func TestAClientWithoutAnAddressIsReachedByItsHardwareAddress(t *testing.T) {
	defer goleak.VerifyNone(t)
	for want, fails := range map[string]error{"10.1.2.5:68": nil, "255.255.255.255:68": errors.New("no device")} {
		o, l := options(), &loop{in: make(chan []byte, 1), out: make(chan string, 1)}
		o.Neighbour = func(_ context.Context, ip netip.Addr, mac net.HardwareAddr) error {
			if ip != mine || mac.String() != known.String() {
				t.Errorf("neighbour %s %s", ip, mac)
			}
			return fails
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- Serve(ctx, l, *o) }()
		l.in <- client(discover)
		if got := <-l.out; got != want {
			t.Errorf("sent to %s, want %s", got, want)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
