// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
)

// configured is what the sub-commands that read the configuration share.
type configured struct {
	loader config.Loader
	path   string
}

func (c *configured) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.path, "config", "", "configuration document (YAML); flags override it")
	c.loader.AddFlags(cmd.Flags())
}

// load reads document and flags, prints what is wrong to w, and fails if any of it is an error.
func (c *configured) load(w io.Writer) (*config.Config, error) {
	cfg, report := c.loader.Load(os.ReadFile, c.path)
	return cfg, show(w, report)
}

func show(w io.Writer, report *config.Report) error {
	for _, p := range report.Problems {
		fmt.Fprintln(w, p)
	}
	if report.Err() != nil {
		return errors.New("the configuration is not valid; nothing was started")
	}
	return nil
}

func newConfig() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check and explain the configuration", Args: known, RunE: help}
	cmd.AddCommand(newConfigValidate(), newConfigExplain())
	return cmd
}

func newConfigValidate() *cobra.Command {
	var c configured
	cmd := &cobra.Command{
		Use:   "validate [--config FILE] [flags]",
		Short: "Report everything that is wrong with a configuration, and where",
		Example: `  cloud-hypervisor-provider config validate --config /etc/cloud-hypervisor-provider.yaml
  cloud-hypervisor-provider config validate --reconcile-workers 0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load(cmd.ErrOrStderr())
			if err != nil {
				return &exitError{1}
			}
			if _, report := cfg.LoadClasses(os.ReadFile); show(cmd.ErrOrStderr(), report) != nil {
				return &exitError{1}
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid")
			return nil
		},
	}
	c.addFlags(cmd)
	return cmd
}

func newConfigExplain() *cobra.Command {
	var c configured
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain [KEY]",
		Short: "Show every setting: what it means, its default, its value and where that comes from",
		Example: `  cloud-hypervisor-provider config explain
  cloud-hypervisor-provider config explain reconcile.workers --config /etc/cloud-hypervisor-provider.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := c.load(cmd.ErrOrStderr())
			if err != nil {
				return &exitError{1}
			}
			key := ""
			if len(args) > 0 {
				key = args[0]
			}
			if asJSON {
				return config.ExplainJSON(cmd.OutOrStdout(), cfg, c.loader.Sources(), key)
			}
			return config.Explain(cmd.OutOrStdout(), cfg, c.loader.Sources(), key)
		},
	}
	c.addFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
