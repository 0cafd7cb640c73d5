// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package providernet

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/internal/dhcp"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/internal/rtnl"
)

// retryPause is before the kernel is asked once more to tell of changes, after it refused or broke off.
const retryPause = 5 * time.Second

// Events tells of interfaces whose bridge came or went, whose tap was moved or removed, or that wait for an address. As
// long as anybody follows, the managed networks work: bridges are there, DHCP is answered, and ports that lost their
// bridge are put back. All is over when the channel is closed. Nil where there are no bridges.
func (p *Plugin) Events(ctx context.Context) <-chan network.Ref {
	if runtime.GOOS != "linux" {
		return nil
	}
	return p.hub.follow(ctx, p.work)
}

func (p *Plugin) work(ctx context.Context) {
	defer p.rest()
	for ctx.Err() == nil {
		if err := p.watch(ctx); err != nil {
			p.log.Warn("changes of network devices are not told; asking again", "error", err, "in", retryPause)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

// watch follows the kernel until ctx or the subscription ends.
func (p *Plugin) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	links, err := rtnl.Watch(ctx)
	if err != nil {
		return err
	}
	var tables <-chan struct{}
	if p.manages() {
		if tables, err = rtnl.WatchTables(ctx); err != nil {
			p.log.Warn("rules that somebody removes will not be set again", "error", err)
		}
	}
	p.look(ctx)
	for {
		select {
		case e, open := <-links:
			if !open {
				return nil
			}
			if merged := drain(links); p.concerned(e) || p.concerned(merged...) {
				p.look(ctx)
			}
		case _, open := <-tables:
			if !open {
				tables = nil
				continue
			}
			p.checkRules(ctx)
			p.look(ctx)
		}
	}
}

// drain takes what has been told meanwhile, so that many changes are looked at once.
func drain(links <-chan rtnl.Event) []rtnl.Event {
	var out []rtnl.Event
	for {
		select {
		case e, open := <-links:
			if !open {
				return out
			}
			out = append(out, e)
		default:
			return out
		}
	}
}

func (p *Plugin) manages() bool {
	for _, s := range p.all() {
		if s.network.Managed != nil {
			return true
		}
	}
	return false
}

// concerned reports whether a change is about a tap or a bridge of the plugin's, or might be.
func (p *Plugin) concerned(events ...rtnl.Event) bool {
	for _, e := range events {
		if e.Lost || e.Route {
			return true
		}
		if _, ok := marked(e.Link.Name, e.Link.Alias); ok {
			return true
		}
		for _, s := range p.all() {
			if s.network.Bridge == e.Link.Name {
				return true
			}
		}
	}
	return false
}

// look compares the host with what was decided, puts right what it may, and tells of what changed.
func (p *Plugin) look(ctx context.Context) {
	for _, s := range p.all() {
		if err := p.retire(ctx, s); err != nil {
			p.log.Warn("a network that is not configured any more stays", "network", s.key, "error", err)
		}
		if err := s.look(ctx); err != nil && ctx.Err() == nil {
			p.log.Warn("a network could not be looked at", "network", s.key, "error", err)
		}
	}
}

func (s *segment) look(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.network.Managed != nil && (s.configured || len(s.ports) > 0) {
		s.ensure(ctx)
		s.serve(ctx)
	}
	links, err := rtnl.Links(ctx)
	if err != nil {
		return err
	}
	pic := index(links)
	bridge := pic.byName[s.network.Bridge]
	if bridge.Kind == "bridge" {
		s.repair(ctx, pic, bridge)
		if links, err = rtnl.Links(ctx); err != nil {
			return err
		}
		pic = index(links)
	}
	for ref := range s.ports {
		now := s.state(ref, pic)
		if text := string(now.State) + now.Reason; s.seen[ref] != text {
			s.seen[ref] = text
			s.plugin.hub.tell(ref)
		}
	}
	// Whether those who wait can go on is for Apply to find out.
	if before := s.index; s.network.Managed == nil && before != bridge.Index {
		s.index = bridge.Index
		s.tell()
	}
	return nil
}

// repair puts back the taps that are in no bridge or another one.
func (s *segment) repair(ctx context.Context, pic picture, bridge rtnl.Link) {
	for ref := range s.ports {
		l, ok := pic.taps[ref]
		if !ok || l.Master == bridge.Index {
			continue
		}
		log := s.plugin.log.With("tap", l.Name, "bridge", bridge.Name, "interface", ref.String())
		if err := s.enslave(ctx, l.Index, l.Master, bridge); err != nil {
			log.Warn("a tap cannot be put back into its bridge", "error", err)
			continue
		}
		log.Info("a tap was put back into its bridge")
	}
}

// checkRules has the rules of those networks set again whose table was taken away, as by a reload of the host's own.
func (p *Plugin) checkRules(ctx context.Context) {
	for _, s := range p.all() {
		s.mu.Lock()
		if s.ruled && p.nftList(ctx, s.table()) != nil && ctx.Err() == nil {
			p.log.Warn("the rules of a network were removed by somebody; setting them again", "network", s.key)
			s.ruled = false
		}
		s.mu.Unlock()
	}
}

// server is a running DHCP server.
type server struct {
	index   int // of the bridge it is bound to
	stop    context.CancelFunc
	ended   chan struct{}
	trouble *trouble // why it does not run
}

// serve has DHCP answered on the bridge that there is now. The caller holds the lock.
func (s *segment) serve(ctx context.Context) {
	m := s.network.Managed
	if s.server != nil && s.server.index == s.index && s.server.trouble == nil {
		return
	}
	s.stopServer()
	if !m.DHCP || s.index == 0 {
		return
	}
	conn, err := dhcp.Listen(s.network.Bridge)
	if err != nil {
		s.server = &server{index: s.index, trouble: &trouble{"DHCPUnavailable", err.Error()}}
		s.trouble = s.server.trouble
		s.plugin.log.Warn("DHCP is not answered", "network", s.key, "error", err)
		return
	}
	if s.trouble != nil && s.trouble.reason == "DHCPUnavailable" {
		s.trouble = nil
		s.tell()
	}
	ctx, stop := context.WithCancel(ctx)
	running := &server{index: s.index, stop: stop, ended: make(chan struct{})}
	s.server = running
	o := dhcp.Options{
		Subnet: m.Subnet, Server: m.Gateway, DNS: m.DNS, Time: s.plugin.o.LeaseTime, Lookup: s.lease,
		Neighbour: func(ctx context.Context, ip netip.Addr, mac net.HardwareAddr) error {
			return rtnl.SetNeighbour(ctx, running.index, ip, mac)
		},
		Logger: s.plugin.log.With("network", s.key),
	}
	if m.NAT {
		o.Router = m.Gateway
	}
	go func() {
		defer close(running.ended)
		err := dhcp.Serve(ctx, conn, o)
		if err == nil {
			return
		}
		s.plugin.log.Warn("the DHCP server ended; it is started again at the next change", "network", s.key, "error", err)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.server == running {
			s.server = nil
		}
	}()
}

// stopServer does not wait for the server's end: it may be asking for a lease, for which it needs the lock.
func (s *segment) stopServer() {
	if s.server != nil && s.server.stop != nil {
		s.server.stop()
	}
	s.server = nil
}

// rest ends what the worker began.
func (p *Plugin) rest() {
	for _, s := range p.all() {
		s.mu.Lock()
		running := s.server
		s.stopServer()
		s.mu.Unlock()
		if running != nil && running.ended != nil {
			<-running.ended
		}
	}
}
