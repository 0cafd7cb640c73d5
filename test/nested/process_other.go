// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package nested

import "syscall"

// endWithUs has no counterpart on this system.
func endWithUs() *syscall.SysProcAttr { return nil }
