// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package ceph

import "syscall"

func mortal() *syscall.SysProcAttr { return nil }
