// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package networktest is what every network plugin has to pass, and what its tests need: an imaginary host of taps, and
// a network namespace of one's own. It exists so that a provider can rely on every plugin in the same way. It must never
// touch the network of the machine that the tests run on, and is for tests only.
package networktest
