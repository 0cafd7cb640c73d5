// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package user provides network interfaces on the user-mode network stack of QEMU, with ports of the host forwarded
// to the guest. It exists for development: the guest reaches out without any privilege or set-up of the host. It must
// never be used for guests of others, since they share the host's addresses, and never forward from an address
// outside loopback unless that address was configured.
package user

import (
	"context"
	"errors"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// Name is the plugin's name in configuration and records.
const Name = "user"

// Options is what the plugin is made of.
type Options struct {
	Supported bool // the hypervisor has a user-mode network (vmm.Capabilities.UserNetwork)
	// Forwards are set up for every interface. A fixed host port serves one of them alone; the VMM of a second one
	// fails to start, and says so.
	Forwards []network.Forward
}

// Plugin implements network.Plugin.
type Plugin struct{ forwards []network.Forward }

// New makes the plugin; an error if the hypervisor cannot do it.
func New(o Options) (*Plugin, error) {
	if !o.Supported {
		return nil, errors.New("network plugin user: the hypervisor has no user-mode network; use QEMU or another plugin")
	}
	return &Plugin{forwards: o.Forwards}, nil
}

// Name returns "user".
func (p *Plugin) Name() string { return Name }

// Validate accepts every interface: addresses come from the stack's own DHCP server (10.0.2.15).
func (p *Plugin) Validate(string, []network.Interface) error { return nil }

// Identity is always the same: nothing in a definition has an effect.
func (p *Plugin) Identity(network.Interface) string { return Name }

// Apply is ready at once: the VMM holds all there is.
func (p *Plugin) Apply(_ context.Context, req network.Request) (network.Result, error) {
	return network.Result{
		State: network.StateReady, Handle: "user://" + req.Ref().String(), MAC: req.MAC, Backend: network.BackendUser, Forwards: p.forwards,
	}, nil
}

// Delete has nothing to remove.
func (p *Plugin) Delete(context.Context, network.Ref) (network.Result, error) {
	return network.Result{State: network.StateAbsent}, nil
}

// Observe knows of nothing on the host: the VMM holds all there is.
func (p *Plugin) Observe(context.Context, network.Ref) (network.Result, error) {
	return network.Result{State: network.StateAbsent}, nil
}

// List is empty for the same reason.
func (p *Plugin) List(context.Context) ([]network.Ref, error) { return nil, nil }

// Events is nil: nothing changes by itself.
func (p *Plugin) Events(context.Context) <-chan network.Ref { return nil }
