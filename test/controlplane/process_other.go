// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package controlplane

import "syscall"

// endsWithParent is for Linux only; elsewhere the processes of a test that was killed are left behind.
func endsWithParent() *syscall.SysProcAttr { return nil }
