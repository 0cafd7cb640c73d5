// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package nested runs tests that need a working KVM on hosts that have none, in a virtual machine that has: QEMU
// emulates a processor with SVM, Debian's kernel in it offers /dev/kvm, and a real Cloud Hypervisor boots real guests
// there. It exists because only that tells what the real thing does with our daemon where no hardware can be had.
//
// It must never bring a Cloud Hypervisor of its own: it uses the one in $CLOUD_HYPERVISOR or PATH, and without one it
// says what was not tested. It must never change the host: all that runs, runs in the emulated machine.
package nested
