// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Package is the import path of the binary.
const Package = "github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech/cmd/fake-cloud-hypervisor"

// Build compiles the fake into dir, statically, and returns its path. A binary that is there already is
// kept. The working directory must be inside the module.
func Build(ctx context.Context, dir string) (string, error) {
	path, err := filepath.Abs(filepath.Join(dir, "fake-cloud-hypervisor"))
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", dir, err)
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, Package)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the fake Cloud Hypervisor: %w: %s", err, out)
	}
	return path, nil
}
