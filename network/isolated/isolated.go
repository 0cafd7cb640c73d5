// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package isolated provides network interfaces that exist in the guest and lead nowhere. It exists for machines that
// need an interface but no network, and as the smallest plugin there can be. It must never give a guest a way to the
// host or to another guest, and never remove a device that is not provably its own.
package isolated

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// Name is the plugin's name in configuration and records.
const Name = "isolated"

// Taps makes and removes tap devices on the host.
type Taps interface {
	// Ensure makes the persistent tap, up and without any address, and marks it as owner's. Idempotent; a device of
	// that name with another owner is an error.
	Ensure(ctx context.Context, name, owner string) error
	// List returns the owner of each tap whose name could be TapName's; "" = none is marked.
	List(ctx context.Context) (map[string]string, error)
	// Remove removes the tap; nil if there is none, an error if it is another owner's.
	Remove(ctx context.Context, name, owner string) error
}

// Options is what the plugin is made of.
type Options struct {
	// Taps is needed when the hypervisor cannot make an isolated interface by itself (Cloud Hypervisor): each
	// interface then hangs on a tap that is connected to nothing. May be nil when it can (QEMU).
	Taps Taps
	// Native says that the hypervisor makes isolated interfaces by itself. Taps then serves only to remove those of
	// machines that another hypervisor ran before the configuration changed.
	Native bool
}

// Plugin implements network.Plugin.
type Plugin struct {
	taps   Taps
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
	result := network.Result{
		State: network.StateReady, Handle: handle(req.Ref()), MAC: req.MAC, Backend: network.BackendIsolated,
	}
	if p.native {
		return result, nil
	}
	result.Backend, result.Tap = network.BackendTap, TapName(req.MachineID, req.Interface.Name)
	if err := p.taps.Ensure(ctx, result.Tap, handle(req.Ref())); err != nil {
		return network.Result{}, fmt.Errorf("make tap %s: %w", result.Tap, err)
	}
	return result, nil
}

// Delete removes the interface's tap, if it has one, whichever hypervisor it was made for.
func (p *Plugin) Delete(ctx context.Context, ref network.Ref) (network.Result, error) {
	if p.taps == nil {
		return network.Result{State: network.StateAbsent}, nil
	}
	name := TapName(ref.MachineID, ref.Name)
	if err := p.taps.Remove(ctx, name, handle(ref)); err != nil {
		return network.Result{}, fmt.Errorf("remove tap %s: %w", name, err)
	}
	return network.Result{State: network.StateAbsent}, nil
}

// Observe looks for the interface's tap. One that the hypervisor makes by itself leaves no trace on the host.
func (p *Plugin) Observe(ctx context.Context, ref network.Ref) (network.Result, error) {
	if p.taps == nil {
		return network.Result{State: network.StateAbsent}, nil
	}
	taps, err := p.taps.List(ctx)
	if err != nil {
		return network.Result{}, fmt.Errorf("list taps: %w", err)
	}
	name := TapName(ref.MachineID, ref.Name)
	if taps[name] != handle(ref) {
		return network.Result{State: network.StateAbsent}, nil
	}
	return network.Result{State: network.StateReady, Handle: handle(ref), Backend: network.BackendTap, Tap: name}, nil
}

// List returns the interfaces whose taps are marked as this plugin's.
func (p *Plugin) List(ctx context.Context) ([]network.Ref, error) {
	if p.taps == nil {
		return nil, nil
	}
	taps, err := p.taps.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list taps: %w", err)
	}
	var refs []network.Ref
	for tap, owner := range taps {
		rest, ok := strings.CutPrefix(owner, "isolated://")
		id, name, both := strings.Cut(rest, "/")
		if ok && both && TapName(id, name) == tap {
			refs = append(refs, network.Ref{MachineID: id, Name: name})
		}
	}
	slices.SortFunc(refs, func(a, b network.Ref) int { return strings.Compare(a.String(), b.String()) })
	return refs, nil
}

// Events is nil: nothing changes by itself.
func (p *Plugin) Events(context.Context) <-chan network.Ref { return nil }

const tapPrefix = "chp"

// TapName is the name of an interface's tap: "chp" and 11 hex digits, the 15 bytes less one that Linux allows.
func TapName(machineID, nic string) string {
	sum := sha256.Sum256([]byte("tap\x00" + machineID + "\x00" + nic))
	return tapPrefix + hex.EncodeToString(sum[:])[:11]
}

func handle(ref network.Ref) string { return "isolated://" + ref.String() }

// ErrNotOwner says that a device of the name exists and belongs to somebody else.
var ErrNotOwner = errors.New("the device belongs to somebody else")
