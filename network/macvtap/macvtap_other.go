// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package macvtap

import (
	"context"
	"errors"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

var errLinux = errors.New("macvtaps need Linux")

// Connect fails.
func (Kernel) Connect(_ context.Context, _, scheme string, ref network.Ref, _ string) (string, error) {
	return "", errors.Join(errLinux, errors.New(owner(scheme, ref)))
}

// Find returns lower.
func (Kernel) Find(_ context.Context, lower, _ string, _ network.Ref) string { return lower }

// Disconnect does nothing, since there is nothing.
func (Kernel) Disconnect(context.Context, string, network.Ref) error { return nil }
