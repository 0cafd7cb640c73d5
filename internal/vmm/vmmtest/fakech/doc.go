// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package fakech is a Cloud Hypervisor that runs no guest: a separate binary that speaks the real
// one's command line, HTTP-over-Unix-socket API, event stream, serial and vsock sockets, in three
// dialects (v52, v53, main), and misbehaves on request.
//
// It exists because almost everything a driver must survive (late boot failures, stale sockets,
// removals that wait for the guest, images locked by another process, a VMM that dies between request
// and answer) cannot be provoked on demand with the real binary, which also needs /dev/kvm. Effects
// that other processes can see are real: disks are opened, locked with OFD locks, resized; sockets
// are bound and left behind exactly where the real one leaves them. Only the guest is a script.
//
// It must never be nicer than the real thing. The transcript suite in this package replays the same
// sentences against the fake and, where one is found, a real binary; where they differ the real one
// is right and the fake is wrong. It must also never be part of a product binary: nothing outside
// tests imports it.
//
// Tests build it with Build, configure it with a Script (FAKE_CH_SCRIPT) and steer it with Control.
package fakech
