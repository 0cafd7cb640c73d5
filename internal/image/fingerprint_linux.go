// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"os"
	"syscall"
)

// fingerprint tells whether a file is the one it was. The change time cannot be set back by who writes to the file.
type fingerprint struct {
	ino, links              uint64
	size, changed, modified int64 // the times in nanoseconds
}

func fingerprintOf(info os.FileInfo) fingerprint {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fingerprint{}
	}
	return fingerprint{
		//nolint:unconvert // 32 bits on arm64
		ino: st.Ino, links: uint64(st.Nlink), size: st.Size, changed: st.Ctim.Nano(), modified: st.Mtim.Nano(),
	}
}

// holds reports whether a file that was f when its bytes were proven, and is now, has the same bytes. A hard link that
// comes or goes, as with a disk that is an overlay on the image, sets the change time, too, and writes nothing.
func (f fingerprint) holds(now fingerprint) bool {
	if f.links != now.links && f.modified == now.modified {
		f.links, f.changed = now.links, now.changed
	}
	return f == now
}
