// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/registry"
)

// serveRegistry serves images from a directory until ctx ends.
func serveRegistry(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: demo registry ADDRESS DIRECTORY")
	}
	server, err := registry.Start(ctx, registry.Options{Address: args[0], Dir: args[1]})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return server.Close()
}
