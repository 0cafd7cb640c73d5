// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package exec proves the remote console with the clients that people have: client-go's executors, as behind kubectl,
// and ironcore's irictl-machine, each on the built daemon with a real guest under QEMU. It is a module of its own, since
// these clients bring several hundred packages that the daemon must not depend on.
package exec
