// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
)

func newConsole() *cobra.Command {
	var c configured
	var o console.AttachOptions
	cmd := &cobra.Command{
		Use:   "console MACHINE",
		Short: "Attach this terminal to a machine's serial console",
		Long: `Attach this terminal to a machine's serial console. The last 64 KiB of output come first.
Press ^] (Control and ]) to leave; the machine does not notice.`,
		Example: `  cloud-hypervisor-provider console 4f0c0e7e-7c0f-4d7e-9d0c-1c1f6b1f3a55
  cloud-hypervisor-provider console --read-only 4f0c0e7e-7c0f-4d7e-9d0c-1c1f6b1f3a55`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := c.load(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			conn, err := console.Dial(cmd.Context(), filepath.Join(cfg.RuntimeDir, consoleSocket), args[0], o)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			fmt.Fprintln(os.Stderr, "attached; escape character is ^]")
			return console.Interactive(cmd.Context(), conn, os.Stdin, os.Stdout)
		},
	}
	c.addFlags(cmd)
	cmd.Flags().BoolVar(&o.ReadOnly, "read-only", false, "watch only; what you type is not sent")
	cmd.Flags().BoolVar(&o.TakeOver, "take-over", false, "take the console from whoever types on it now")
	return cmd
}
