// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package iriserver answers the MachineRuntime calls of the IRI: it checks requests, admits machines, and turns
// stored machines into answers. It exists to keep the contract with the machinepoollet in one place. It must never
// do I/O other than through the store, answer OK to a call that had no effect, answer a list in part, or put
// secrets or Ignition payloads anywhere but where they were asked for.
package iriserver
