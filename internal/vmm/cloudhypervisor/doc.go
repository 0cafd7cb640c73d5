// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package cloudhypervisor is the vmm.Driver of Cloud Hypervisor: one VMM process for each machine, started with
// --no-shutdown so that it outlives its guest, and spoken to over its REST API. It exists to hide what that VMM
// makes hard: a definition that stays after a failed create, a half VM after a boot that failed late, a state that
// cannot tell "never booted" from "stopped", sockets that a crash leaves behind, and versions that name things
// differently.
//
// The package must never act on a VMM without having asked for the machine's UUID just before, never take a timeout
// for a death (one slow call blocks all others inside the VMM), never remove a socket that somebody listens on, and
// never leave image_type to the VMM's guess.
//
// # Sandbox
//
// The VMM's own seccomp filters are always on. Landlock is off unless Options.Landlock is set: it needs ABI 3 of the
// kernel (Linux 6.2), refuses every path that is plugged in later unless Options.LandlockPaths covers it, and adds
// no rule for /dev/vfio by itself.
//
// # Files
//
// In the runtime directory: api.sock with api.sock.lock, serial.sock, vsock.sock where a guest agent is wanted, events (the event monitor's file) and, where
// the payload goes by disk, ignition.img. In the state directory: cloud-hypervisor.log and, of the run before,
// cloud-hypervisor.log.1.
package cloudhypervisor
