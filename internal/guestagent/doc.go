// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package guestagent speaks to the QEMU guest agent inside a machine, over whatever byte stream its driver offers: a
// Unix socket behind a virtio-serial port, or Cloud Hypervisor's hybrid vsock.
//
// It exists so that a guest is asked to shut down in the way that its operating system understands, and so that its
// addresses and its operating system can be shown, without trusting the guest in anything: a guest may be silent, send
// garbage for ever or lie, and all that this costs is a bounded time and a bounded number of bytes.
//
// It must never hold a connection between calls (the channel serves one client, and connections die with a guest's
// restart), never read without a deadline and a limit, never take silence for consent, and never pass on text of a
// guest that is long or not printable.
//
// The protocol is docs/interop/qemu-ga-ref of QEMU: JSON lines in both directions. Neither side can tell where the
// other's unfinished business of an earlier connection ends, so that each call begins with guest-sync-delimited: a
// byte 0xFF, which is in no JSON text and makes the agent forget half a command, then an id that comes back behind
// another 0xFF. What comes before is dropped.
package guestagent
