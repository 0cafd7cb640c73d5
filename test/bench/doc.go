// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package bench measures the numbers that SPECIFICATION.md promises, each against a baseline of the same run, since
// absolute times on shared hardware say little. It must never fail because a machine is slow.
package bench
