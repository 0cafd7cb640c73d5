// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"time"
)

// KVM is the verdict about hardware virtualisation.
type KVM struct {
	Usable bool   `json:"usable"`
	Reason string `json:"reason"` // always set: what was proven, or what stands in the way and how to get past it
	// Took is the time the test guest ran; 0 if it was not started.
	Took time.Duration `json:"took"`
}

// The numbers of the test guest. It adds up the numbers 1 to loopCount, three instructions a turn, twelve million
// altogether, after it has used the instructions named at the payload of the architecture.
//
//   - real hardware, also shared by ten busy neighbours: 4 to 50 ms;
//   - KVM nested in KVM: the same, the loop never leaves the processor;
//   - KVM nested in a QEMU without acceleration (measured on amd64 and arm64, busy machine): 12 to 110 ms;
//   - a KVM that emulates kernel code (measured: half a million instructions a second): 24 s. A Linux kernel needs
//     minutes to its first line there and usually dies on an instruction the emulator lacks.
//
// runLimit lies in the gap: some twenty times the slowest that is useful, a tenth of what is not.
const (
	loopCount  = 4_000_000
	runLimit   = 2 * time.Second
	setupLimit = 5 * time.Second // for opening the device and making the VM; usually 1 to 20 ms
	graceLimit = time.Second     // for a vCPU to obey the request to stop
)

const kvmDevice = "/dev/kvm"

// ProbeKVM finds out by running a tiny 64-bit guest whether /dev/kvm can run guests. That the device exists, opens
// and has the right API version proves nothing: there are servers whose KVM runs boot firmware and no kernel.
//
// It needs Linux on amd64 or arm64; elsewhere KVM is reported as not usable. It takes some milliseconds where KVM
// works and at most about 8 s where it does not, whatever ctx says. A vCPU that does not even obey a signal is
// abandoned with its thread, VM and memory (2 MiB) rather than waited for; the reason says so.
func ProbeKVM(ctx context.Context) KVM { return probeKVM(ctx, kvmDevice) }
