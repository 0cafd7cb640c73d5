// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/iriserver"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/health"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/apinet"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/apinet/access"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/macvtap"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/vfio"
)

// newAPINet makes the plugin whenever this host has a name in ironcore-net: with another plugin configured it only
// cleans up. Nil if it has none.
func newAPINet(cfg *config.Config, stateID string, log *slog.Logger) (*apinet.Plugin, error) {
	a := cfg.Network.APINet
	if a.NodeName == "" {
		return nil, nil
	}
	log = log.With("plugin", apinet.Name)
	keys, err := access.New(access.Options{
		Node: a.NodeName, Kubeconfig: a.Kubeconfig, SecretName: a.KubeconfigSecretName, SecretNamespace: a.KubeconfigSecretNamespace,
		Bootstrap: a.BootstrapKubeconfig, Rotate: a.RotateCertificates, EgressSelectorConfig: a.EgressSelectorConfig,
		QPS: float32(a.QPS), Burst: a.Burst, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	functions, err := vfio.New(vfio.Options{Dir: filepath.Join(cfg.StateDir, networksDir, apinet.Name, "functions")})
	if err != nil {
		return nil, err
	}
	return apinet.New(apinet.Options{
		Access: keys, Node: a.NodeName, Provider: iriserver.RuntimeName, StateID: stateID, Functions: functions,
		Taps: macvtap.Kernel{}, Logger: log,
	})
}

// runAPINet keeps the plugin connected.
func (p *parts) runAPINet(ctx context.Context) error {
	if p.apinet == nil {
		return nil
	}
	return p.apinet.Run(ctx)
}

// apinetChecks say whether networks can be had. Guests run on without.
func (p *parts) apinetChecks(cfg *config.Config) []health.Check {
	if p.apinet == nil || cfg.Network.Plugin != config.NetworkAPINet {
		return nil
	}
	return []health.Check{{
		Name: apinet.Name, For: health.Ready, Probe: func(context.Context) error { return p.apinet.Ready() },
	}}
}
