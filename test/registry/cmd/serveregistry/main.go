// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Command serveregistry runs an OCI registry on a loopback address until it is told to stop.
//
//	serveregistry --dir DIR [--address 127.0.0.1:PORT] [--address-file FILE]
//
// It exists for the demo, which wants a registry that outlives the command that started it. It must never listen on
// an address that other hosts reach. The address it got is printed to standard output and, with --address-file,
// written to a file once it serves.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/registry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "serveregistry:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var o registry.Options
	var addressFile string
	var verbose bool
	cmd := &cobra.Command{
		Use: "serveregistry", Short: "Serve an OCI registry on loopback",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
			return serve(cmd.Context(), o, addressFile)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Dir, "dir", "", "where blobs and manifests are kept (default: a temporary directory)")
	flags.StringVar(&o.Address, "address", registry.DefaultAddress, "loopback address to listen on; port 0 takes a free one")
	flags.StringVar(&addressFile, "address-file", "", "file to write the address to; removed at the end")
	flags.BoolVar(&verbose, "verbose", false, "log each request")
	return cmd
}

func serve(ctx context.Context, o registry.Options, addressFile string) error {
	s, err := registry.Start(context.WithoutCancel(ctx), o)
	if err != nil {
		return err
	}
	fmt.Println("registry: listening on", s.Host())
	if addressFile != "" {
		// By rename, so that whoever waits for the file finds it whole.
		if err := os.WriteFile(addressFile+".new", []byte(s.Host()+"\n"), 0o640); err != nil {
			return err
		}
		if err := os.Rename(addressFile+".new", addressFile); err != nil {
			return err
		}
		defer func() { _ = os.Remove(addressFile) }()
	}
	<-ctx.Done()
	return s.Close()
}
