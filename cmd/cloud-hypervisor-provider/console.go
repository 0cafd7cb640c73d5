// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func newConsole() *cobra.Command {
	var c configured
	var o console.AttachOptions
	cmd := &cobra.Command{
		Use:   "console MACHINE",
		Short: "Attach this terminal to a machine's serial console",
		Long: `Attach this terminal to a machine's serial console. The last 64 KiB of output come first.
Press ^] (Control and ]) to leave; the machine does not notice. Any number may watch, one may type.
Without a terminal the output is shown until the machine ends or the command is interrupted.`,
		Example: `  cloud-hypervisor-provider console 4f0c0e7e-7c0f-4d7e-9d0c-1c1f6b1f3a55
  cloud-hypervisor-provider console --read-only 4f0c0e7e-7c0f-4d7e-9d0c-1c1f6b1f3a55`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.ReadOnly && o.TakeOver {
				return errors.New("--read-only and --take-over exclude each other")
			}
			cfg, err := c.load(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			conn, err := console.Dial(cmd.Context(), filepath.Join(cfg.RuntimeDir, consoleSocket), args[0], o)
			if err != nil {
				return wayOut(err)
			}
			defer func() { _ = conn.Close() }()
			if console.IsTerminal(os.Stdin) {
				fmt.Fprintln(os.Stderr, "attached; ^] leaves")
				defer fmt.Fprintln(os.Stderr, "\nleft the console; the machine goes on")
			}
			return console.Interactive(cmd.Context(), conn, os.Stdin, os.Stdout)
		},
	}
	c.addFlags(cmd)
	// Where the daemon's sockets are is all that matters here. The other flags are taken, so that the daemon's own
	// command line works, but not listed.
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = f.Hidden || f.Name != "config" && f.Name != "runtime-dir" })
	cmd.Flags().BoolVar(&o.ReadOnly, "read-only", false, "watch only; what you type is not sent")
	cmd.Flags().BoolVar(&o.TakeOver, "take-over", false, "take the console from whoever types on it now")
	return cmd
}

// wayOut says what to do about a console that could not be attached.
func wayOut(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w; does the daemon run, and is this its --config or --runtime-dir?", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; root and the group of the IRI socket may attach", err)
	case machine.IsKind(err, machine.NotFound):
		return fmt.Errorf("%w; it does not exist or does not run", err)
	case machine.IsKind(err, machine.FailedPrecondition):
		return fmt.Errorf("%w (--take-over, --read-only)", err)
	}
	return err
}
