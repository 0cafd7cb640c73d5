// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host/check"
)

func newCheck() *cobra.Command {
	var c configured
	var asJSON, strict bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether this server is fit to run machines, and if not, why",
		Long: `Say whether this server is fit to run machines: hypervisors and their versions, a /dev/kvm that really runs guests,
firmware, cgroups, hugepages, disk space, what the file system can do, the programs that volumes need, and what
the networks of providernet need. Nothing is changed.

Exit code 0: fit (with --strict: without a warning); 1: not fit; 2: the configuration is not valid.`,
		Example: `  cloud-hypervisor-provider check
  cloud-hypervisor-provider check --json --strict --config /etc/cloud-hypervisor-provider.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load(cmd.ErrOrStderr())
			if err != nil {
				return &exitError{2}
			}
			report := check.Run(cmd.Context(), check.Options{
				StateDir: cfg.StateDir, RuntimeDir: cfg.RuntimeDir, SocketPath: cfg.IRI.Address, Hypervisor: wants(cfg),
				Volumes: check.Volumes{
					Overlays: cfg.Volumes.LocalDisk.Overlays == config.Auto, StorageDaemon: cfg.Volumes.Ceph.StorageDaemon,
					ServeCeph: cfg.Volumes.Ceph.Access == config.CephStorageDaemon,
				},
				Network: networkNeeds(cfg),
			})
			out := cmd.OutOrStdout()
			if asJSON {
				err = report.WriteJSON(out)
			} else {
				err = report.WriteText(out, check.TextOptions{Color: check.Color(os.Stdout)})
			}
			if err != nil {
				return err
			}
			if code := report.ExitCode(strict); code != 0 {
				return &exitError{code}
			}
			return nil
		},
	}
	c.addFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&strict, "strict", false, "let warnings fail the check, too")
	return cmd
}

// networkNeeds is what the networks of providernet need of the host.
func networkNeeds(cfg *config.Config) check.Network {
	var n check.Network
	if cfg.Network.Plugin != config.NetworkProviderNet {
		return n
	}
	for _, net := range cfg.Network.ProviderNet.Networks {
		if net.Managed != nil {
			n.Managed = append(n.Managed, net.Name)
		} else if !slices.Contains(n.Bridges, net.Bridge) {
			n.Bridges = append(n.Bridges, net.Bridge)
		}
	}
	return n
}
