// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Command mkguest builds the demo guest and pushes it to a registry as an OCI image.
//
//	mkguest build --cache DIR [--arch ARCH]
//	mkguest push  --cache DIR --ref HOST:PORT/REPO:TAG [--plain-http] [--legacy] [--vmlinux] [--command-line TEXT]
//
// It exists so that "make run" and a person by hand get the same guest as the tests. It must never do more than call
// the guest package: what it prints goes to standard error as a log, and the result alone (paths or the pushed
// reference with its digest) to standard output.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mkguest:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "mkguest", Short: "Build and push the demo guest", SilenceUsage: true, SilenceErrors: true,
	}
	o := &guest.Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flags := root.PersistentFlags()
	flags.StringVar(&o.CacheDir, "cache", guest.DefaultCacheDir(), "directory for downloads and finished guests ($CHP_GUEST_CACHE)")
	flags.StringVar(&o.Arch, "arch", "", "amd64 or arm64 (default: this host's)")
	flags.StringVar(&o.KernelTree, "kernel-tree", "", "unpacked kernel package to use instead of Debian's cloud kernel")
	flags.StringVar(&o.Busybox, "busybox", "", "static busybox to use instead of Debian's")
	flags.StringVar(&o.InitDir, "init-dir", "", "sources of process 1 (default: found by the go command in this module)")
	flags.BoolVar(&o.GuestAgent, "guest-agent", false, "include the QEMU guest agent, which runs when the kernel command line has chp.agent")
	root.AddCommand(buildCommand(o), pushCommand(o))
	return root
}

func buildCommand(o *guest.Options) *cobra.Command {
	return &cobra.Command{
		Use: "build", Short: "Build the guest and print the paths of its parts", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files, err := guest.Build(cmd.Context(), *o)
			if err != nil {
				return err
			}
			fmt.Printf("kernel-version=%s\nkernel=%s\nvmlinux=%s\ninitramfs=%s\nroot-disk=%s\n",
				files.KernelVersion, files.Kernel, files.VMLinux, files.Initramfs, files.RootDisk)
			return nil
		},
	}
}

func pushCommand(o *guest.Options) *cobra.Command {
	var ref string
	var push guest.PushOptions
	cmd := &cobra.Command{
		Use: "push", Short: "Build the guest where needed and push it as an OCI image", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files, err := guest.Build(cmd.Context(), *o)
			if err != nil {
				return err
			}
			start := time.Now()
			desc, err := guest.Push(cmd.Context(), files, ref, push)
			if err != nil {
				return err
			}
			o.Logger.Info("pushed guest", "ref", ref, "took", time.Since(start).Round(time.Millisecond))
			fmt.Printf("%s@%s\n", ref, desc.Digest)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&ref, "ref", "", "where to push: HOST[:PORT]/REPOSITORY[:TAG]")
	flags.BoolVar(&push.PlainHTTP, "plain-http", false, "the registry has no TLS")
	flags.BoolVar(&push.Legacy, "legacy", false, "use the v1alpha1 media types")
	flags.BoolVar(&push.UseVMLinux, "vmlinux", false, "push the uncompressed kernel, which boots faster under emulation")
	flags.StringVar(&push.CommandLine, "command-line", "", "kernel command line of the image (default: serial console)")
	cobra.CheckErr(cmd.MarkFlagRequired("ref"))
	return cmd
}
