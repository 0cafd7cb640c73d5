// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !darwin

package host

import (
	"errors"
	"os"
	"runtime"
)

func platformUname() (Uname, error) {
	name, err := os.Hostname()
	return Uname{Hostname: name}, err
}

func platformMemory() (uint64, error) {
	return 0, errors.New("memory size is not known how to read on " + runtime.GOOS)
}

func hvfSupported() (ok bool, reason string) { return false, "HVF exists on macOS only" }
