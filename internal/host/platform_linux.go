// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"

	"golang.org/x/sys/unix"
)

func platformUname() (Uname, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Uname{}, err
	}
	return Uname{Hostname: unix.ByteSliceToString(u.Nodename[:]), Release: unix.ByteSliceToString(u.Release[:])}, nil
}

func platformMemory() (uint64, error) {
	return 0, errors.New("/proc/meminfo is missing: is /proc mounted?")
}

func hvfSupported() (ok bool, reason string) { return false, "HVF exists on macOS only" }
