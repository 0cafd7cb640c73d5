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
