// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Command prepare builds the programs of the control plane and ends; nothing is to be done when they are in the cache.
//
// It exists so that building, which takes minutes, can run beside other tests. It must never fail those: what it could
// not build is built, or reported, by the tests that need it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane/programs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	began := time.Now()
	say := func(line string) { fmt.Printf("control plane: %6.1fs  %s\n", time.Since(began).Seconds(), line) }
	if _, err := programs.Build(ctx, programs.Options{Say: say}); err != nil {
		fmt.Fprintln(os.Stderr, "control plane:", err)
		stop()
		os.Exit(1)
	}
	say("all programs are in " + programs.DefaultCacheDir())
}
