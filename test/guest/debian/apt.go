// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// aptOptions are the options that make apt-get serve the wanted architecture.
func (c *Cache) aptOptions(ctx context.Context) ([]string, error) {
	// The sandbox user of apt cannot write into a private cache directory; apt falls back to root anyway, with a warning.
	options := []string{"-q", "-o", "APT::Sandbox::User=root"}
	host, err := c.run(ctx, "", "dpkg", "--print-architecture")
	if err == nil && strings.TrimSpace(host) == c.arch {
		return options, nil
	}
	root := filepath.Join(c.dir, "apt-"+c.arch)
	for _, dir := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o750); err != nil {
			return nil, fmt.Errorf("create private package index: %w", err)
		}
	}
	options = append(options,
		"-o", "APT::Architecture="+c.arch,
		"-o", "APT::Architectures::="+c.arch,
		"-o", "Dir::State="+filepath.Join(root, "state"),
		"-o", "Dir::State::status=/dev/null",
		"-o", "Dir::Cache="+filepath.Join(root, "cache"),
	)
	stamp := filepath.Join(root, "updated")
	if exists(stamp) {
		return options, nil
	}
	c.log.Info("fetching a private package index", "arch", c.arch)
	if _, err := c.run(ctx, "", "apt-get", append(options, "update")...); err != nil {
		return nil, fmt.Errorf("fetch package index for %s: %w", c.arch, err)
	}
	return options, os.WriteFile(stamp, nil, 0o640)
}
