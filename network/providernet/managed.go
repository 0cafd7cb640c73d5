// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package providernet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network/internal/rtnl"
)

// bridgeMark is the alias of a bridge that this plugin made. It is no interface's.
func (s *segment) bridgeMark() string { return Name + "-network://" + s.key }

// bridgeMAC is given to the bridge when it is made, so that its address does not change with its ports, and so that one
// that was not marked before a kill is known.
func (s *segment) bridgeMAC() net.HardwareAddr {
	sum := sha256.Sum256([]byte("bridge\x00" + s.key + "\x00" + s.network.Bridge))
	return net.HardwareAddr(append([]byte{0x02}, sum[:5]...))
}

// ensure makes the managed network what it should be, and says what hinders it. The caller holds the lock.
func (s *segment) ensure(ctx context.Context) *trouble {
	t := s.make(ctx)
	if t == nil && s.server != nil {
		t = s.server.trouble
	}
	if ctx.Err() != nil {
		return t
	}
	if t != nil && (s.trouble == nil || *s.trouble != *t) {
		s.plugin.log.Warn("a managed network does not work", "network", s.key, "reason", t.reason, "error", t.message)
	}
	worked := s.trouble == nil
	s.trouble = t
	if t == nil && !worked {
		s.tell()
	}
	return t
}

func (s *segment) make(ctx context.Context) *trouble {
	bridge, t := s.makeBridge(ctx)
	if t != nil {
		return t
	}
	m := s.network.Managed
	if m.NAT {
		if err := s.forward(ctx, bridge); err != nil {
			return &trouble{"ForwardingOff", err.Error()}
		}
	}
	if bridge.Index == s.index && s.ruled {
		return nil
	}
	if err := rtnl.AddAddress(ctx, bridge.Index, netip.PrefixFrom(m.Gateway, m.Subnet.Bits())); err != nil {
		return &trouble{"BridgeUnusable", err.Error()}
	}
	if err := s.rules(ctx); err != nil {
		if t := (*ruleError)(nil); errors.As(err, &t) {
			return &trouble{t.reason, t.Error()}
		}
		return &trouble{"RulesRefused", err.Error()}
	}
	s.index, s.ruled = bridge.Index, true
	return nil
}

// makeBridge makes the bridge or finds it; one of somebody else is left alone.
func (s *segment) makeBridge(ctx context.Context) (rtnl.Link, *trouble) {
	unusable := func(err error) *trouble { return &trouble{"BridgeUnusable", err.Error()} }
	name, mark := s.network.Bridge, s.bridgeMark()
	link, err := rtnl.ByName(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.save(); err != nil {
			return link, unusable(err)
		}
		if err := rtnl.AddBridge(ctx, name, s.bridgeMAC()); err != nil {
			return link, unusable(err)
		}
		link, err = rtnl.ByName(ctx, name)
	}
	if err != nil {
		return link, unusable(err)
	}
	own := link.Alias == mark || link.Alias == "" && bytes.Equal(link.MAC, s.bridgeMAC())
	if link.Kind != "bridge" || !own {
		return link, &trouble{"BridgeForeign", fmt.Sprintf("device %s exists and was not made for network %s; name another bridge", name, s.key)}
	}
	change, needed := rtnl.Change{}, false
	if link.Alias != mark {
		change.Alias, needed = &mark, true
	}
	if link.MTU != s.network.MTU {
		change.MTU, needed = s.network.MTU, true
	}
	if !link.Up {
		up := true
		change.Up, change.NoAddresses, needed = &up, true, true
		_ = sysctl("ipv6", name, "disable_ipv6", "1") // the network serves IPv4 only
	}
	if !needed {
		return link, nil
	}
	if err := rtnl.Set(ctx, link.Index, change); err != nil {
		change.NoAddresses = false // unknown to a kernel without IPv6
		if err := rtnl.Set(ctx, link.Index, change); err != nil {
			return link, unusable(err)
		}
	}
	return link, nil
}

// forward lets the kernel route between the bridge and the devices that lead out. Packets that come back arrive there,
// so the bridge alone is not enough; no other device is touched.
func (s *segment) forward(ctx context.Context, bridge rtnl.Link) error {
	out, err := rtnl.DefaultRoutes(ctx)
	if err != nil {
		return err
	}
	links, err := rtnl.Links(ctx)
	if err != nil {
		return err
	}
	devices := []string{bridge.Name}
	for _, l := range links {
		for _, index := range out {
			if l.Index == index {
				devices = append(devices, l.Name)
			}
		}
	}
	for _, device := range devices {
		if err := sysctl("ipv4", device, "forwarding", "1"); err != nil {
			return fmt.Errorf("let %s forward: %w", device, err)
		}
	}
	return nil
}

// sysctl writes a device's setting, unless it has the value already: in many containers it cannot be written.
func sysctl(family, device, key, value string) error {
	path := filepath.Join("/proc/sys/net", family, "conf", device, key)
	if now, err := os.ReadFile(path); err == nil && string(bytes.TrimSpace(now)) == value {
		return nil
	}
	return os.WriteFile(path, []byte(value), 0o644)
}

// retire removes a managed network that is not configured any more, once nothing is connected to it.
func (p *Plugin) retire(ctx context.Context, s *segment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.configured || len(s.ports) > 0 {
		return nil
	}
	if s.network.Managed != nil {
		if gone, err := s.dismantle(ctx); err != nil || !gone {
			return err
		}
		s.network.Managed = nil
		if err := s.save(); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.segments, s.key)
	return nil
}

// dismantle takes away what make made; not while somebody else has a port in the bridge.
func (s *segment) dismantle(ctx context.Context) (gone bool, err error) {
	s.stopServer()
	links, err := rtnl.Links(ctx)
	if err != nil {
		return false, err
	}
	bridge, exists := index(links).byName[s.network.Bridge]
	if exists && bridge.Kind == "bridge" && bridge.Alias == s.bridgeMark() {
		for _, l := range links {
			if l.Master == bridge.Index {
				return false, nil
			}
		}
		if err := rtnl.Delete(ctx, bridge.Index); err != nil {
			return false, err
		}
	}
	return true, s.unrule(ctx)
}
