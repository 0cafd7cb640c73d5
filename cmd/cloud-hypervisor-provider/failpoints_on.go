// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
)

// failpoints reads CHP_FAILPOINTS, "step:when=action,…". When is before, after, intended or spawned (the last two of
// vmm.launch alone); action is kill (the daemon dies as by SIGKILL) or error. Only test builds have this.
func failpoints(log *slog.Logger) func(context.Context, reconcile.StepName, string) error {
	actions := map[string]string{}
	for _, point := range strings.Split(os.Getenv("CHP_FAILPOINTS"), ",") {
		if at, action, ok := strings.Cut(point, "="); ok {
			actions[at] = action
		}
	}
	return func(_ context.Context, step reconcile.StepName, when string) error {
		at := string(step) + ":" + when
		switch actions[at] {
		case "kill":
			log.Warn("failpoint kills the daemon", "at", at)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		case "error":
			return fmt.Errorf("failpoint %s", at)
		}
		return nil
	}
}
