// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package isolated provides network interfaces that exist in the guest and lead nowhere. It exists for machines that
// need an interface but no network, and as the smallest plugin there can be. It must never give a guest a way to the
// host or to another guest, and never remove a device that is not provably its own.
package isolated

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
)

// Name is the plugin's name in configuration and records.
const Name = "isolated"

// Options is what the plugin is made of.
type Options struct {
	// Taps is needed when the hypervisor cannot make an isolated interface by itself (Cloud Hypervisor): each
	// interface then hangs on a tap that is connected to nothing. May be nil when it can (QEMU).
	Taps tap.Host
	// Native says that the hypervisor makes isolated interfaces by itself. Taps then serves only to remove those of
	// machines that another hypervisor ran before the configuration changed.
	Native bool
}

// Plugin implements network.Plugin.
type Plugin struct {
	taps   tap.Host
	native bool
}

// New makes the plugin.
func New(o Options) *Plugin { return &Plugin{taps: o.Taps, native: o.Native || o.Taps == nil} }

// Name returns "isolated".
func (p *Plugin) Name() string { return Name }

// Validate accepts every interface: network and addresses are kept and have no effect.
func (p *Plugin) Validate(string, []network.Interface) error { return nil }

// Identity is always the same: nothing in a definition has an effect.
func (p *Plugin) Identity(network.Interface) string { return Name }

// Apply makes the interface's tap, if one is needed; it is ready at once.
func (p *Plugin) Apply(ctx context.Context, req network.Request) (network.Result, error) {
	if err := ctx.Err(); err != nil {
		return network.Result{}, err
	}
	if p.native {
		return network.Result{
			State: network.StateReady, Handle: handle(req.Ref()), MAC: req.MAC, Backend: network.BackendIsolated,
		}, nil
	}
	name := tap.Name(req.MachineID, req.Interface.Name)
	device, err := p.taps.Ensure(ctx, tap.Spec{Name: name, Owner: handle(req.Ref())})
	switch {
	case errors.Is(err, tap.ErrNotOwner):
		return network.Result{State: network.StateFailed, Reason: "DeviceForeign", Message: fmt.Sprintf("tap %s: %v", name, err)}, nil
	case errors.Is(err, tap.ErrLimit):
		return network.Result{State: network.StateFailed, Reason: "DeviceLimit", Message: fmt.Sprintf("tap %s: %v", name, err)}, nil
	case err != nil:
		return network.Result{}, fmt.Errorf("make tap %s: %w", name, err)
	}
	result := ready(req.Ref(), device)
	result.MAC = req.MAC
	return result, nil
}

// ready has one pair of queues: more would speed up nothing.
func ready(ref network.Ref, d tap.Device) network.Result {
	return network.Result{State: network.StateReady, Handle: handle(ref), Backend: network.BackendTap, Tap: d.Name, MTU: d.MTU}
}

// Delete removes the interface's tap, if it has one, whichever hypervisor it was made for. A device of the name that is
// somebody else's is none of the interface's.
func (p *Plugin) Delete(ctx context.Context, ref network.Ref) (network.Result, error) {
	if err := ctx.Err(); err != nil {
		return network.Result{}, err
	}
	if p.taps == nil {
		return network.Result{State: network.StateAbsent}, nil
	}
	name := tap.Name(ref.MachineID, ref.Name)
	if err := p.taps.Remove(ctx, name, handle(ref)); err != nil && !errors.Is(err, tap.ErrNotOwner) {
		return network.Result{}, fmt.Errorf("remove tap %s: %w", name, err)
	}
	return network.Result{State: network.StateAbsent}, nil
}

// Observe looks for the interface's tap. One that the hypervisor makes by itself leaves no trace on the host.
func (p *Plugin) Observe(ctx context.Context, ref network.Ref) (network.Result, error) {
	devices, err := p.marked(ctx)
	if err != nil {
		return network.Result{}, err
	}
	if d, ok := devices[ref]; ok {
		return ready(ref, d), nil
	}
	return network.Result{State: network.StateAbsent}, nil
}

// List returns the interfaces whose taps are marked as this plugin's.
func (p *Plugin) List(ctx context.Context) ([]network.Ref, error) {
	devices, err := p.marked(ctx)
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Keys(devices), func(a, b network.Ref) int { return strings.Compare(a.String(), b.String()) }), nil
}

// marked returns the taps with this plugin's mark.
func (p *Plugin) marked(ctx context.Context) (map[network.Ref]tap.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if p.taps == nil {
		return nil, nil
	}
	devices, err := p.taps.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list taps: %w", err)
	}
	out := map[network.Ref]tap.Device{}
	for _, d := range devices {
		rest, ok := strings.CutPrefix(d.Owner, scheme)
		id, name, both := strings.Cut(rest, "/")
		if ok && both && tap.Name(id, name) == d.Name {
			out[network.Ref{MachineID: id, Name: name}] = d
		}
	}
	return out, nil
}

// Events is nil: nothing changes by itself.
func (p *Plugin) Events(context.Context) <-chan network.Ref { return nil }

const scheme = Name + "://"

func handle(ref network.Ref) string { return scheme + ref.String() }
