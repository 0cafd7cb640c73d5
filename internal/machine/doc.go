// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package machine is the domain: what a machine is, told apart into what was asked for (Desired) and what this
// daemon did about it (Record), with states, conditions, identifiers and typed errors. It exists so that every
// other package speaks of machines in the same words. It must never import another package of this module, do
// I/O, or hold what the host currently looks like (that is observed, and never kept as truth).
package machine
