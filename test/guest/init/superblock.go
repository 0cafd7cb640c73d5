// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
)

const (
	// rootLabel is the ext4 label of the disk that keeps state over power cycles.
	rootLabel = "chp-root"
	// configLabel is the FAT label of the read-only disk that may carry the Ignition payload.
	configLabel = "IGNITION"
	// configFile is the payload's name on that disk.
	configFile = "config.ign"
)

// ext4Label returns the label of the ext2/3/4 file system that starts at offset 0, or "".
func ext4Label(r io.ReaderAt) string {
	const superblock, magicAt, magic, labelAt, labelLen = 1024, 0x38, 0xef53, 0x78, 16
	buf := make([]byte, labelAt+labelLen)
	if _, err := r.ReadAt(buf, superblock); err != nil {
		return ""
	}
	if binary.LittleEndian.Uint16(buf[magicAt:]) != magic {
		return ""
	}
	label, _, _ := bytes.Cut(buf[labelAt:], []byte{0})
	return string(label)
}

// fatLabel returns the label in the boot sector of the FAT file system that starts at offset 0, or "".
func fatLabel(r io.ReaderAt) string {
	const sector, signatureAt, labelLen = 512, 510, 11
	buf := make([]byte, sector)
	if _, err := r.ReadAt(buf, 0); err != nil {
		return ""
	}
	if buf[signatureAt] != 0x55 || buf[signatureAt+1] != 0xaa {
		return ""
	}
	// The label's place depends on the variant; the file system name right behind it tells which one this is.
	for _, at := range []int{0x2b, 0x47} {
		if bytes.HasPrefix(buf[at+labelLen:], []byte("FAT")) {
			return strings.TrimRight(string(buf[at:at+labelLen]), " ")
		}
	}
	return ""
}
