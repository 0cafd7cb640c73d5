// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package systemd proves the daemon's unit in deploy/systemd: what is written in it, on any host, and what it does, under
// a real systemd that is process 1 of an emulated machine. Package inner is the test that runs in there.
//
// The machine is made of the host's own systemd, D-Bus and libraries, so that no distribution has to be downloaded. The
// package must never ask the host's systemd, its buses or its cgroups for anything, nor start a manager on it.
package systemd
