// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package console is the one reader of each guest's serial console. A VMM serves a single client and some keep nothing
// while nobody listens, so the hub stays connected for as long as a machine is open, keeps the latest output in a ring,
// records everything in a capped log file and shares it with any number of clients, one of which may type.
//
// What flows where:
//
//	VMM's socket ──▶ reader ──▶ ring ──▶ log file   (a cursor of its own)
//	                               └───▶ clients    (a cursor each)
//	VMM's socket ◀── the one client that may type
//
// Log and clients read the ring at their own pace. One that is overtaken loses the oldest bytes and gets a line that
// says how many, so a full disk or a sleeping client costs memory never and the others nothing.
//
// It must never make a VMM wait for a client, nor for a disk for longer than LogPatience once per time of trouble; never
// pass on what a read-only client types; never make a directory; and never touch a guest.
package console
