// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package e2e runs the built daemon as an operator would: real process, real sockets, an image pulled from a registry
// on loopback, and a real guest under QEMU, the fake Cloud Hypervisor, or the real one. It exists to prove what no
// package can prove alone. It must never reach into the daemon other than through its sockets, files and signals.
package e2e
