// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package host answers one question: what is this server? It reads the facts a scheduler needs (processors, memory,
// hugepages, NUMA), finds out which hypervisors, firmware and accelerators really work, and what the file system
// below a directory can do.
//
// It exists because the obvious signs mislead: /dev/kvm may open and yet run no guest kernel, a firmware file may be
// the one of another hypervisor, a mount may promise reflinks and refuse them. So everything that can be tried is
// tried, and every answer carries its reason in words for a log line or the check command.
//
// It must never keep state, change the host, or guess: what could not be read is an error or an explicit unknown.
// Everything it starts or creates (a throw-away VM, a temporary file, "--version" of a hypervisor) has a deadline
// and is gone when the call returns; the one exception is stated at ProbeKVM.
package host
