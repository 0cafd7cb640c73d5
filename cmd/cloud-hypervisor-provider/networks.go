// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"path/filepath"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/apinet"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/isolated"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/providernet"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/user"
)

// networksDir is where network plugins keep what they decided, below the state directory.
const networksDir = "networks"

// newNetworks makes the plugin for new interfaces, and all of them, to remove what was made before the configuration
// changed.
func newNetworks(cfg *config.Config, c vmm.Capabilities, connected *apinet.Plugin, log *slog.Logger) (network.Plugin, map[string]network.Plugin, error) {
	userMode, err := newUserNetwork(cfg, c)
	if err != nil {
		return nil, nil, err
	}
	bridges, err := newProviderNetworks(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	all := map[string]network.Plugin{}
	for _, p := range []network.Plugin{
		isolated.New(isolated.Options{Taps: tap.Kernel{}, Native: c.IsolatedNIC}), userMode, bridges,
	} {
		all[p.Name()] = p
	}
	if connected != nil {
		all[connected.Name()] = connected
	}
	return all[cfg.Network.Plugin], all, nil
}

func newUserNetwork(cfg *config.Config, c vmm.Capabilities) (network.Plugin, error) {
	o := user.Options{Supported: c.UserNetwork || cfg.Network.Plugin != config.NetworkUser}
	for _, f := range cfg.Network.User.Forwards {
		o.Forwards = append(o.Forwards, network.Forward{
			HostAddress: f.HostAddress.String(), HostPort: int(f.HostPort), GuestPort: int(f.GuestPort),
		})
	}
	return user.New(o)
}

// newProviderNetworks has no networks while another plugin is configured, and then only cleans up.
func newProviderNetworks(cfg *config.Config, log *slog.Logger) (network.Plugin, error) {
	o := providernet.Options{Dir: filepath.Join(cfg.StateDir, networksDir, providernet.Name), Logger: log}
	if cfg.Network.Plugin == config.NetworkProviderNet {
		o.AllowBridges, o.Networks = cfg.Network.ProviderNet.AllowBridges, map[string]providernet.Network{}
		for _, n := range cfg.Network.ProviderNet.Networks {
			one := providernet.Network{Bridge: n.Bridge, MTU: n.MTU, Isolated: n.Isolated}
			if m := n.Managed; m != nil {
				one.Managed = &providernet.Managed{Subnet: m.Subnet, Gateway: m.Gateway, NAT: m.NAT, DNS: m.DNS, DHCP: m.DHCP}
			}
			o.Networks[n.Name] = one
		}
	}
	return providernet.New(o)
}
