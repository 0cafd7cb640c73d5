// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package tap

import (
	"context"
	"errors"
)

var errLinux = errors.New("tap devices need Linux")

// Kernel does not exist on this system.
type Kernel struct{}

var _ Host = Kernel{}

// Ensure fails.
func (Kernel) Ensure(_ context.Context, s Spec) (Device, error) {
	return Device{}, errors.Join(errLinux, s.check())
}

// List returns none.
func (Kernel) List(context.Context) ([]Device, error) { return nil, nil }

// Remove has nothing to remove.
func (Kernel) Remove(context.Context, string, string) error { return nil }
