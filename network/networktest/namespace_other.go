// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package networktest

import "testing"

// InNamespace skips the test: network namespaces are Linux's.
func InNamespace(t *testing.T) bool {
	t.Helper()
	t.Skip("SKIPPED: NOT TESTED on real network devices: they need Linux")
	return false
}
