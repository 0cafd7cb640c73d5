// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package image

import "os"

// fingerprint tells whether a file is the one it was.
type fingerprint struct{ size, changed int64 }

func fingerprintOf(info os.FileInfo) fingerprint {
	return fingerprint{size: info.Size(), changed: info.ModTime().UnixNano()}
}

// holds reports whether a file that was f when its bytes were proven, and is now, has the same bytes.
func (f fingerprint) holds(now fingerprint) bool { return f == now }
