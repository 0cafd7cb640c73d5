// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package providernet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/internal/rtnl"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
)

const scheme = Name + "://"

func handle(ref network.Ref) string { return scheme + ref.String() }

// Apply makes the interface's tap and connects it.
func (p *Plugin) Apply(ctx context.Context, req network.Request) (network.Result, error) {
	if err := ctx.Err(); err != nil {
		return network.Result{}, err
	}
	mac, err := net.ParseMAC(req.MAC)
	if err != nil {
		return network.Result{}, fmt.Errorf("MAC %q: %w", req.MAC, err)
	}
	req.MAC = mac.String()
	req.Queues = min(max(req.Queues, 1), tap.MaxQueues)
	key, n, wrong := p.resolve(req.Interface.NetworkID)
	if wrong != "" {
		return failed("NetworkUnknown", "network %q %s", clip(req.Interface.NetworkID), wrong), nil
	}
	if _, at, wrong := n.addresses(req.Interface.IPs); wrong != "" {
		return failed("AddressInvalid", "address %q %s", clip(req.Interface.IPs[at]), wrong), nil
	}
	s := p.segment(key, n)
	if err := p.leave(ctx, req.Ref(), s); err != nil {
		return network.Result{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	result, err := s.apply(ctx, req)
	switch {
	case err != nil:
		return network.Result{}, fmt.Errorf("connect %s to network %s: %w", req.Ref(), s.key, err)
	case result.State != network.StateReady:
		s.waiting[req.Ref()] = true
	default:
		delete(s.waiting, req.Ref())
	}
	return result, nil
}

func failed(reason, format string, args ...any) network.Result {
	return network.Result{State: network.StateFailed, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func pending(reason, format string, args ...any) network.Result {
	return network.Result{State: network.StatePending, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func (s *segment) apply(ctx context.Context, req network.Request) (network.Result, error) {
	if s.network.Managed != nil {
		if t := s.ensure(ctx); ctx.Err() != nil {
			return network.Result{}, ctx.Err()
		} else if t != nil {
			return failed(t.reason, "%s", t.message), nil
		}
	}
	bridge, result, err := s.bridge(ctx)
	if err != nil || result.State != "" {
		return result, err
	}
	if full, err := s.full(ctx, bridge, tap.Name(req.MachineID, req.Interface.Name)); full || err != nil {
		return failed("BridgeFull", "bridge %s has %d ports, as many as may be", bridge.Name, s.plugin.o.MaxPorts), err
	}
	decided, err := s.decide(req)
	switch {
	case errors.Is(err, errInUse):
		return failed("AddressInUse", "address %s: %v", req.Interface.IPs[0], err), nil
	case errors.Is(err, errExhausted):
		return failed("AddressesExhausted", "subnet %s: %v", s.network.Managed.Subnet, err), nil
	case err != nil:
		return network.Result{}, fmt.Errorf("keep what was decided: %w", err)
	}
	return s.connect(ctx, req.Ref(), decided, bridge)
}

// bridge finds the network's bridge, or says how it is without.
func (s *segment) bridge(ctx context.Context) (rtnl.Link, network.Result, error) {
	bridge, err := rtnl.ByName(ctx, s.network.Bridge)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return bridge, pending("BridgeMissing", "bridge %s does not exist", s.network.Bridge), nil
	case err != nil:
		return bridge, network.Result{}, err
	case bridge.Kind != "bridge":
		return bridge, failed("NotABridge", "device %s is not a bridge", s.network.Bridge), nil
	}
	return bridge, network.Result{}, nil
}

// full reports whether the bridge has no room for the device, which is not one of its ports yet.
func (s *segment) full(ctx context.Context, bridge rtnl.Link, device string) (bool, error) {
	links, err := rtnl.Links(ctx)
	if err != nil {
		return false, err
	}
	n := 0
	for _, l := range links {
		if l.Master == bridge.Index {
			if l.Name == device {
				return false, nil
			}
			n++
		}
	}
	return n >= s.plugin.o.MaxPorts, nil
}

// connect makes the tap and puts it into the bridge.
func (s *segment) connect(ctx context.Context, ref network.Ref, one port, bridge rtnl.Link) (network.Result, error) {
	name, mtu := tap.Name(ref.MachineID, ref.Name), s.network.MTU
	if mtu == 0 {
		mtu = bridge.MTU
	}
	device, err := s.plugin.taps.Ensure(ctx, tap.Spec{
		Name: name, Owner: handle(ref), Queues: one.Queues, MTU: min(mtu, tap.MaxMTU), UID: s.plugin.o.UID,
	})
	switch {
	case errors.Is(err, tap.ErrNotOwner):
		return failed("DeviceForeign", "tap %s: %v", name, err), nil
	case errors.Is(err, tap.ErrLimit):
		return failed("DeviceLimit", "tap %s: %v", name, err), nil
	case err != nil:
		return network.Result{}, fmt.Errorf("make tap %s: %w", name, err)
	}
	if err := s.enslave(ctx, device.Index, device.Master, bridge); err != nil {
		if bridgeFull(err) {
			return failed("BridgeFull", "bridge %s takes no more ports", bridge.Name), nil
		}
		return network.Result{}, fmt.Errorf("connect tap %s to bridge %s: %w", name, bridge.Name, err)
	}
	return s.ready(ref, one, device.MultiQueue, device.MTU), nil
}

func (s *segment) enslave(ctx context.Context, index, master int, bridge rtnl.Link) error {
	if master != bridge.Index {
		if err := rtnl.Set(ctx, index, rtnl.Change{Master: &bridge.Index}); err != nil {
			return err
		}
	}
	links, err := rtnl.Links(ctx)
	if err != nil {
		return err
	}
	// A guest has no business in the spanning tree of the host's network.
	want := rtnl.Port{Isolated: s.network.Isolated, Protect: true}
	i := slices.IndexFunc(links, func(l rtnl.Link) bool { return l.Index == index })
	if i >= 0 && links[i].Port == want {
		return nil
	}
	return rtnl.SetPort(ctx, index, want)
}

func (s *segment) ready(ref network.Ref, one port, multi bool, mtu int) network.Result {
	r := network.Result{
		State: network.StateReady, Handle: handle(ref), MAC: one.MAC, Backend: network.BackendTap,
		Tap: tap.Name(ref.MachineID, ref.Name), MTU: mtu,
	}
	if multi {
		r.Queues = max(one.Queues, 1)
	}
	if one.IP.IsValid() {
		r.Message = "address " + one.IP.String()
	}
	return r
}

// Observe looks at the interface's tap and at what it is connected to.
func (p *Plugin) Observe(ctx context.Context, ref network.Ref) (network.Result, error) {
	links, err := rtnl.Links(ctx)
	if err != nil {
		return network.Result{}, err
	}
	if s := p.holding(ref); s != nil {
		defer s.mu.Unlock()
		return s.state(ref, index(links)), nil
	}
	l, ok := index(links).taps[ref]
	switch {
	case !ok:
		return network.Result{State: network.StateAbsent}, nil
	case l.Master == 0:
		return failed("NotConnected", "tap %s is in no bridge", l.Name), nil
	}
	return network.Result{
		State: network.StateReady, Handle: handle(ref), Backend: network.BackendTap, Tap: l.Name, MTU: l.MTU,
	}, nil
}

// picture is the host's devices, by what they are to this plugin.
type picture struct {
	taps   map[network.Ref]rtnl.Link
	byName map[string]rtnl.Link
}

func index(links []rtnl.Link) picture {
	pic := picture{map[network.Ref]rtnl.Link{}, map[string]rtnl.Link{}}
	for _, l := range links {
		pic.byName[l.Name] = l
		if ref, ok := marked(l.Name, l.Alias); ok {
			pic.taps[ref] = l
		}
	}
	return pic
}

// marked reads the mark of a tap; false if it is none of this plugin's.
func marked(device, alias string) (network.Ref, bool) {
	rest, ok := strings.CutPrefix(alias, scheme)
	machine, name, both := strings.Cut(rest, "/")
	return network.Ref{MachineID: machine, Name: name}, ok && both && tap.Name(machine, name) == device
}

// state is how an interface of the ledger is.
func (s *segment) state(ref network.Ref, pic picture) network.Result {
	bridge, ok := pic.byName[s.network.Bridge]
	l, exists := pic.taps[ref]
	switch {
	case !exists:
		return failed("DeviceMissing", "tap %s does not exist any more", tap.Name(ref.MachineID, ref.Name))
	case !ok:
		return pending("BridgeMissing", "bridge %s does not exist", s.network.Bridge)
	case bridge.Kind != "bridge":
		return failed("NotABridge", "device %s is not a bridge", s.network.Bridge)
	case l.Master != bridge.Index:
		return pending("NotConnected", "tap %s is not in bridge %s", l.Name, bridge.Name)
	case s.trouble != nil:
		return failed(s.trouble.reason, "%s", s.trouble.message)
	}
	return s.ready(ref, s.ports[ref], l.Tun.MultiQueue, l.MTU)
}

// Delete removes the interface's tap and forgets what was decided for it.
func (p *Plugin) Delete(ctx context.Context, ref network.Ref) (network.Result, error) {
	if err := ctx.Err(); err != nil {
		return network.Result{}, err
	}
	name := tap.Name(ref.MachineID, ref.Name)
	if err := p.taps.Remove(ctx, name, handle(ref)); err != nil && !errors.Is(err, tap.ErrNotOwner) {
		return network.Result{}, fmt.Errorf("remove tap %s: %w", name, err)
	}
	if err := p.leave(ctx, ref, nil); err != nil {
		return network.Result{}, fmt.Errorf("forget %s: %w", ref, err)
	}
	return network.Result{State: network.StateAbsent}, nil
}

// List returns the interfaces with a tap that bears the plugin's mark, and those for which something was decided.
func (p *Plugin) List(ctx context.Context) ([]network.Ref, error) {
	links, err := rtnl.Links(ctx)
	if err != nil {
		return nil, err
	}
	known := map[network.Ref]bool{}
	for ref := range index(links).taps {
		known[ref] = true
	}
	for _, s := range p.all() {
		s.mu.Lock()
		for ref := range s.ports {
			known[ref] = true
		}
		s.mu.Unlock()
	}
	var refs []network.Ref
	for ref := range known {
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, func(a, b network.Ref) int { return strings.Compare(a.String(), b.String()) })
	return refs, nil
}
