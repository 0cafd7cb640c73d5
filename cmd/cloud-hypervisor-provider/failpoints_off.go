// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !failpoints

package main

import (
	"context"
	"log/slog"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
)

// failpoints are not part of this build; see failpoints_on.go.
func failpoints(*slog.Logger) func(context.Context, reconcile.StepName, string) error { return nil }
