// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"os"
	"syscall"
)

// fingerprint tells whether a file is the one it was. The change time cannot be set back by who writes to the file.
type fingerprint struct {
	ino                   uint64
	size, changed, cnanos int64
}

func fingerprintOf(info os.FileInfo) fingerprint {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fingerprint{}
	}
	sec, nsec := st.Ctim.Unix()
	return fingerprint{ino: st.Ino, size: st.Size, changed: sec, cnanos: nsec}
}
