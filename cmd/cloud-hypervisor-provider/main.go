// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Command cloud-hypervisor-provider turns one Linux server into a node of an ironcore cloud: it answers ironcore's
// MachineRuntime calls on a Unix socket and runs each machine as a Cloud Hypervisor or QEMU process. This package is
// wiring alone, a file for each sub-command; it must never hold logic that another package could need.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker; it must be a semantic version, since the poollet shows it.
var version = "0.1.0-dev"

func main() { os.Exit(run(os.Args[1:])) }

// exitError ends the program with a code of its own, its message being printed already.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

func run(args []string) int {
	// The first signal asks for an orderly end; with the handler gone, the second one is at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		return exit.code
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "cloud-hypervisor-provider",
		Short: "Run the machines of an ironcore cloud on this server",
		Long: `cloud-hypervisor-provider turns one Linux server into a node of an ironcore cloud.
It answers ironcore's MachineRuntime calls (IRI) on a Unix socket and runs each machine
as a Cloud Hypervisor process, or a QEMU process where Cloud Hypervisor or KVM is missing.`,
		SilenceUsage: true, SilenceErrors: true, Version: version, Args: known, RunE: help,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; \"%s --help\" lists what there is", err, cmd.CommandPath())
	})
	root.AddCommand(newServe(), newCheck(), newConfig(), newConsole(), newMachines(), newEvents(), newImages(), newVersion())
	return root
}

// help is what a command does that only holds others.
func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// known refuses the name of a sub-command that does not exist: help and exit code 0 would let a script go on.
func known(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := fmt.Sprintf("\"%s --help\" lists what there is", cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean " + near[0] + "?"
	}
	return fmt.Errorf("unknown command %q for %q; %s", args[0], cmd.CommandPath(), hint)
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), version) },
	}
}
