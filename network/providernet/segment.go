// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package providernet

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/internal/dhcp"
)

// segment is one network at work.
type segment struct {
	plugin     *Plugin
	key        string // of the configuration, or bridgeKey and the bridge's name; also the file's name
	network    Network
	configured bool // new interfaces may be connected

	mu      sync.Mutex // held while the host is changed, too
	ports   map[network.Ref]port
	waiting map[network.Ref]bool // to be told when something changes here
	seen    map[network.Ref]string
	index   int  // of the bridge when it was last looked at, 0 = there was none
	ruled   bool // the rules were set for that bridge
	trouble *trouble
	server  *server
}

// trouble is why a managed network does not work.
type trouble struct{ reason, message string }

func newSegment(p *Plugin, key string, n Network, configured bool) *segment {
	return &segment{
		plugin: p, key: key, network: n, configured: configured,
		ports: map[network.Ref]port{}, waiting: map[network.Ref]bool{}, seen: map[network.Ref]string{},
	}
}

// segment returns the one of a key, and makes that of a bridge that is named directly for the first time.
func (p *Plugin) segment(key string, n Network) *segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.segments[key] == nil {
		p.segments[key] = newSegment(p, key, n, true)
	}
	return p.segments[key]
}

// all returns the segments in a stable order.
func (p *Plugin) all() []*segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*segment
	for _, s := range p.segments {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *segment) int {
		if a.key < b.key {
			return -1
		}
		return 1
	})
	return out
}

var (
	errInUse     = errors.New("another interface of the network has it")
	errExhausted = errors.New("all addresses of the network are in use")
)

// decide makes durable which MAC, address and name an interface has. The caller holds the lock.
func (s *segment) decide(req network.Request) (port, error) {
	ref := req.Ref()
	before, known := s.ports[ref]
	after := port{MAC: req.MAC, Hostname: req.Hostname, Queues: req.Queues}
	if s.network.Managed != nil {
		ips, _, _ := s.network.addresses(req.Interface.IPs)
		var err error
		if after.IP, after.Chosen, err = s.address(ref, ips, before); err != nil {
			return before, err
		}
	}
	if known && after == before {
		return after, nil
	}
	s.ports[ref] = after
	if err := s.save(); err != nil {
		if s.ports[ref] = before; !known {
			delete(s.ports, ref)
		}
		return before, err
	}
	s.tell()
	return after, nil
}

// address is the one that was asked for, else the one there was, else a free one.
func (s *segment) address(ref network.Ref, wanted []netip.Addr, before port) (ip netip.Addr, chosen bool, err error) {
	taken := map[netip.Addr]bool{}
	for other, one := range s.ports {
		if other != ref {
			taken[one.IP] = true
		}
	}
	m := s.network.Managed
	switch {
	case len(wanted) > 0 && taken[wanted[0]]:
		return ip, false, errInUse
	case len(wanted) > 0:
		return wanted[0], false, nil
	}
	for _, r := range m.reserved() {
		taken[r] = true
	}
	if before.Chosen && usable(m.Subnet, before.IP) && !taken[before.IP] {
		return before.IP, true, nil
	}
	// From a place that only the name decides, so that an interface mostly gets the address it had, even without files.
	hosts := uint32(1)<<(32-m.Subnet.Bits()) - 2
	sum := sha256.Sum256([]byte("address\x00" + ref.String()))
	start, base := binary.BigEndian.Uint32(sum[:])%hosts, m.Subnet.Addr().As4()
	for i := range hosts {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(base[:])+1+(start+i)%hosts)
		if ip = netip.AddrFrom4(b); !taken[ip] {
			return ip, true, nil
		}
	}
	return netip.Addr{}, false, errExhausted
}

// forget removes an interface from the ledger. The caller holds the lock.
func (s *segment) forget(ref network.Ref) error {
	before, known := s.ports[ref]
	delete(s.waiting, ref)
	delete(s.seen, ref)
	if !known {
		return nil
	}
	delete(s.ports, ref)
	if err := s.save(); err != nil {
		s.ports[ref] = before
		return err
	}
	s.tell()
	return nil
}

// tell wakes those who wait. The caller holds the lock.
func (s *segment) tell() {
	for ref := range s.waiting {
		s.plugin.hub.tell(ref)
	}
}

// lease is what the DHCP server says to a client.
func (s *segment) lease(mac net.HardwareAddr) (dhcp.Lease, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.ports {
		if m := s.network.Managed; one.MAC == mac.String() && m != nil && usable(m.Subnet, one.IP) {
			l := dhcp.Lease{IP: one.IP, Hostname: one.Hostname}
			if s.network.MTU != defaultMTU {
				l.MTU = s.network.MTU
			}
			return l, true
		}
	}
	return dhcp.Lease{}, false
}

// holding locks and returns the segment that has the interface; nil if none has.
func (p *Plugin) holding(ref network.Ref) *segment {
	for _, s := range p.all() {
		s.mu.Lock()
		if _, ok := s.ports[ref]; ok {
			return s
		}
		s.mu.Unlock()
	}
	return nil
}

// leave has every other segment forget an interface that is to be connected here.
func (p *Plugin) leave(ctx context.Context, ref network.Ref, here *segment) error {
	for _, s := range p.all() {
		if s == here {
			continue
		}
		s.mu.Lock()
		err := s.forget(ref)
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if err := p.retire(ctx, s); err != nil {
			return err
		}
	}
	return nil
}
