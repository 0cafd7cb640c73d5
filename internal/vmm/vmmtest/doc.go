// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package vmmtest is the suite that every vmm.Driver passes. It exists so that "the same life cycle for every
// driver" is a set of sentences that are run, against fakes and real VMMs alike, and not a hope. It must never
// know which driver it runs: what differs between them is a field of Setup, and what a guest cannot show is left
// out with a skip that says so.
//
// A driver's test calls
//
//	vmmtest.Conformance(t, vmmtest.Setup{…})
//
// with a driver, a supervisor, the parts of a guest that boots, and what that guest can be made to do. Each case
// has its own machine, directories and VMM process; a case never leaves a process behind, also when it fails.
package vmmtest
