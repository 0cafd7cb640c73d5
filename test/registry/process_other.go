// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package registry

import "syscall"

// diesWithParent does nothing here: only Linux ties a child's life to its parent.
func diesWithParent() *syscall.SysProcAttr { return nil }
