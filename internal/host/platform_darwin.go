// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import "golang.org/x/sys/unix"

func platformUname() (Uname, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Uname{}, err
	}
	return Uname{Hostname: unix.ByteSliceToString(u.Nodename[:]), Release: unix.ByteSliceToString(u.Release[:])}, nil
}

func platformMemory() (uint64, error) { return unix.SysctlUint64("hw.memsize") }

// hvfSupported asks the kernel whether Hypervisor.framework may be used (it may not inside most virtual machines).
func hvfSupported() (ok bool, reason string) {
	v, err := unix.SysctlUint32("kern.hv_support")
	switch {
	case err != nil:
		return false, "sysctl kern.hv_support: " + err.Error()
	case v == 0:
		return false, "sysctl kern.hv_support is 0: this machine offers no Hypervisor.framework"
	default:
		return true, "sysctl kern.hv_support is 1"
	}
}
