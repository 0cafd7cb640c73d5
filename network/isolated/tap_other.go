// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package isolated

import (
	"context"
	"errors"
)

// HostTaps does not exist on this system.
type HostTaps struct{}

// NewHostTaps makes a HostTaps that can only say so.
func NewHostTaps() *HostTaps { return &HostTaps{} }

// Ensure fails.
func (h *HostTaps) Ensure(context.Context, string, string) error {
	return errors.New("tap devices need Linux")
}

// List fails.
func (h *HostTaps) List(context.Context) (map[string]string, error) {
	return nil, errors.New("tap devices need Linux")
}

// Remove has nothing to remove.
func (h *HostTaps) Remove(context.Context, string, string) error { return nil }
