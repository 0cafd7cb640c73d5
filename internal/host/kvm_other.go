// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(amd64 || arm64)

package host

import (
	"context"
	"runtime"
)

func probeKVM(context.Context, string) KVM {
	return KVM{Reason: "KVM is used on Linux on amd64 and arm64 only; this is " + runtime.GOOS + " on " + runtime.GOARCH}
}
