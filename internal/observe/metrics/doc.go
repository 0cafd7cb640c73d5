// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package metrics tells Prometheus how the daemon and its machines are. It exists so that an operator can watch a
// hundred servers and be woken by the one that needs it. Names and labels are a promise: they stand in
// docs/operations/metrics.md, which the tests hold them to. A scrape is answered from memory and from /proc; it never
// waits for a VMM, a disk or a lock that is held for long. The package must never make a label of what a guest or a
// client can choose freely, nor as many series of machines as there may be machines.
package metrics
