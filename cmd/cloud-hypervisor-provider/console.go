// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
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
	var logged, follow bool
	cmd := &cobra.Command{
		Use:   "console MACHINE",
		Short: "Attach this terminal to a machine's serial console",
		Long: `Attach this terminal to a machine's serial console. The last 64 KiB of output come first.
Press ^] (Control and ]) to leave; the machine does not notice. Any number may watch, one may type.
Without a terminal the output is shown until the machine ends or the command is interrupted.`,
		Example: `  cloud-hypervisor-provider console 4f0c0e7e-7c0f-4d7e-9d0c-1c1f6b1f3a55
  cloud-hypervisor-provider console --read-only 4f0c0e7e-7c0f-4d7e-9d0c-1c1f6b1f3a55
  cloud-hypervisor-provider console --log 4f0c0e7e-7c0f-4d7e-9d0c-1c1f6b1f3a55`,
		Args: oneMachine, ValidArgsFunction: c.completeMachines,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.ReadOnly && o.TakeOver {
				return errors.New("--read-only and --take-over exclude each other")
			}
			cfg, err := c.load(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if logged {
				return printLog(cmd.OutOrStdout(), cfg.StateDir, args[0], cfg.Console.LogBackups)
			}
			o.ReadOnly = o.ReadOnly || follow
			conn, err := console.Dial(cmd.Context(), filepath.Join(cfg.RuntimeDir, consoleSocket), args[0], o)
			if err != nil {
				return wayOut(err)
			}
			defer func() { _ = conn.Close() }()
			if console.IsTerminal(os.Stdin) {
				fmt.Fprintln(os.Stderr, "attached; ^] leaves")
				defer fmt.Fprintln(os.Stderr, "\nleft the console; the machine goes on")
			}
			err = console.Interactive(cmd.Context(), conn, os.Stdin, os.Stdout)
			if cmd.Context().Err() != nil {
				return nil // interrupted, which is how a watch ends
			}
			return err
		},
	}
	c.addFlags(cmd)
	// Where the daemon's sockets are is all that matters here. The other flags are taken, so that the daemon's own
	// command line works, but not listed.
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Hidden || f.Name != "config" && f.Name != "runtime-dir" && f.Name != "state-dir" && f.Name != "address"
	})
	cmd.Flags().BoolVar(&o.ReadOnly, "read-only", false, "watch only; what you type is not sent")
	cmd.Flags().BoolVar(&o.TakeOver, "take-over", false, "take the console from whoever types on it now")
	cmd.Flags().BoolVar(&logged, "log", false, "print the recorded console log, also of a machine that is off, and end")
	cmd.Flags().BoolVar(&follow, "follow", false, "print the last 64 KiB and go on with what the guest prints; nothing is typed")
	cmd.MarkFlagsMutuallyExclusive("log", "follow", "take-over")
	return cmd
}

func oneMachine(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("console takes one machine, found %d; \"cloud-hypervisor-provider machines\" lists them", len(args))
	}
	return nil
}

// printLog prints the console log of a machine from its oldest rotated file to the newest.
func printLog(w io.Writer, stateDir, id string, backups int) error {
	if filepath.Base(id) != id || id == "." || id == ".." {
		return fmt.Errorf("%q is no machine id", id)
	}
	newest := filepath.Join(stateDir, "machines", id, "console.log")
	if _, err := os.Stat(newest); err != nil {
		return fmt.Errorf("read the console log: %w", err)
	}
	for i := backups; i >= 0; i-- {
		path := newest
		if i > 0 {
			path = fmt.Sprintf("%s.%d", newest, i)
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the console log: %w", err)
		}
		_, err = io.Copy(w, f)
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	return nil
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
