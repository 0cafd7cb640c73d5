// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package inner is the test of the daemon's unit that runs inside a machine whose process 1 is systemd; package systemd
// makes that machine. It installs the daemon as an operator does and does to its unit what operators do.
//
// It must never run anywhere else: it starts, stops and kills units. It runs only where $CHP_SYSTEMD_INSIDE is set.
package inner
