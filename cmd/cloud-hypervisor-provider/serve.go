// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/iriserver"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
)

// consoleSocket is the name of the local console socket in the runtime directory.
const consoleSocket = "console.sock"

func newServe() *cobra.Command {
	var c configured
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon until SIGTERM or SIGINT. Guests go on when it ends and are taken up again by the next one.
A second signal ends it at once.`,
		Example: `  cloud-hypervisor-provider serve --config /etc/cloud-hypervisor-provider.yaml
  cloud-hypervisor-provider serve --supported-machine-classes /etc/machine-classes.yaml --hypervisor qemu`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			err = serve(cmd.Context(), cfg)
			if err != nil && cfg.Log.Format == config.LogJSON {
				newLogger(cfg.Log).Error("cannot serve", "error", err) // whoever parses the log finds the reason there
				return &exitError{1}
			}
			return err
		},
	}
	c.addFlags(cmd)
	return cmd
}

func newLogger(c config.Log) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // checked by the configuration
	o := &slog.HandlerOptions{Level: level}
	if c.Format == config.LogJSON {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}

// serve puts the daemon together and runs it until ctx ends. The IRI socket is opened last, once the store is loaded:
// a client that saw an empty list would create every machine anew.
func serve(ctx context.Context, cfg *config.Config) (err error) {
	log := newLogger(cfg.Log)
	classes, report := cfg.LoadClasses(os.ReadFile)
	if err := show(os.Stderr, report); err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.StateDir, 0o750); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	if err := os.MkdirAll(cfg.RuntimeDir, 0o750); err != nil {
		return fmt.Errorf("make the runtime directory: %w", err)
	}
	w, err := newWatch(ctx, cfg, log) // before the store, whose loading may take a while
	if err != nil {
		return err
	}
	defer w.close()
	st, err := store.Open(ctx, store.Options{Dir: cfg.StateDir, Logger: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	w.loaded.Open()
	parts, err := assemble(ctx, cfg, classes, st, w, log)
	if err != nil {
		return err
	}
	defer parts.close()
	manager, err := newManager(cfg.IRI.Address, log)
	if err != nil {
		return err
	}
	defer manager.close()
	listener, err := iriserver.Listen(filepath.Join(cfg.RuntimeDir, consoleSocket), cfg.IRI.Group)
	if err != nil {
		return groupKey(err)
	}
	defer context.AfterFunc(ctx, manager.stopping)()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return parts.reconciler.Run(ctx) })
	group.Go(func() error { return parts.followStore(ctx, st) })
	group.Go(func() error { return console.Serve(ctx, listener, parts.consoles, log) })
	group.Go(func() error { return parts.serveExec(ctx) })
	group.Go(func() error { return parts.serveImages(ctx, cfg) })
	group.Go(func() error { return parts.runAPINet(ctx) })
	group.Go(func() error { return w.run(ctx) })
	group.Go(func() error { return manager.run(ctx) })
	group.Go(func() error {
		return iriserver.Serve(ctx, parts.server, iriserver.ServeOptions{
			Address: cfg.IRI.Address, Group: cfg.IRI.Group, Timeout: cfg.IRI.RequestTimeout, Metrics: w.metrics.RPC(),
			Logger: log,
			Ready: func() {
				w.ready(cfg.IRI.Address)
				log.Info("ready", "address", cfg.IRI.Address, "machines", len(st.List()), "version", version)
				manager.ready()
			},
		})
	})
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info("stopped; guests go on")
	return nil
}

// groupKey names the setting behind an error about a group that does not exist.
func groupKey(err error) error {
	var unknown user.UnknownGroupError
	if errors.As(err, &unknown) {
		return fmt.Errorf("iri.group (--address-group): %w", err)
	}
	return err
}
