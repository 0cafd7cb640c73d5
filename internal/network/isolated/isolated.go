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

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/network"
)

// Name is the plugin's name in configuration and records.
const Name = "isolated"

// Taps makes and removes tap devices on the host.
type Taps interface {
	// Ensure makes the persistent tap, up and without any address, and marks it as owner's. Idempotent; a device of
	// that name with another owner is an error.
	Ensure(ctx context.Context, name, owner string) error
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

var _ network.Plugin = (*Plugin)(nil)

// New makes the plugin.
func New(o Options) *Plugin { return &Plugin{taps: o.Taps, native: o.Native || o.Taps == nil} }

// Name returns "isolated".
func (p *Plugin) Name() string { return Name }

// Validate accepts every interface: network and addresses are kept and have no effect.
func (p *Plugin) Validate(string, machine.NetworkInterface) error { return nil }

// Apply makes the interface's tap, if one is needed; it is ready at once.
func (p *Plugin) Apply(ctx context.Context, req network.Request) (network.Result, error) {
	result := network.Result{
		Ready: true, Handle: handle(req), MAC: machine.MAC(req.MachineID, req.NIC.Name), Backend: network.BackendIsolated,
	}
	if p.native {
		return result, nil
	}
	result.Backend, result.Tap = network.BackendTap, TapName(req.MachineID, req.NIC.Name)
	if err := p.taps.Ensure(ctx, result.Tap, handle(req)); err != nil {
		return network.Result{}, machine.Wrap(kindOf(err), err, "make tap "+result.Tap)
	}
	return result, nil
}

// Delete removes the interface's tap, if it has one, whichever hypervisor it was made for.
func (p *Plugin) Delete(ctx context.Context, req network.Request) error {
	if p.taps == nil {
		return nil
	}
	name := TapName(req.MachineID, req.NIC.Name)
	if err := p.taps.Remove(ctx, name, handle(req)); err != nil {
		return machine.Wrap(kindOf(err), err, "remove tap "+name)
	}
	return nil
}

// TapName is the name of an interface's tap: "chp" and 11 hex digits, the 15 bytes less one that Linux allows.
func TapName(machineID, nic string) string {
	sum := sha256.Sum256([]byte("tap\x00" + machineID + "\x00" + nic))
	return "chp" + hex.EncodeToString(sum[:])[:11]
}

func handle(req network.Request) string { return "isolated://" + req.MachineID + "/" + req.NIC.Name }

// ErrNotOwner says that a device of the name exists and belongs to somebody else.
var ErrNotOwner = errors.New("the device belongs to somebody else")

func kindOf(err error) machine.Kind {
	if errors.Is(err, ErrNotOwner) {
		return machine.Conflict
	}
	return machine.Unavailable
}
