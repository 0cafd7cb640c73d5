// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package driver runs the conformance suite of VMM drivers with the real Cloud Hypervisor and a real Linux guest. It
// exists because the guest that the driver's own tests boot has no power button and no disks. It must never stand in
// for either: without a binary and a KVM that runs guests it says that nothing was tested; package nested makes a
// machine in which it can run.
package driver
