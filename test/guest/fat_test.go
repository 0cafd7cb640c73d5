// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"encoding/binary"
	"strings"
)

// fatImage makes a 1 MiB FAT12 file system without partitions that holds one file. name is the 8.3 directory form.
// It is written from the format's description, independent of the provider's own writer, so that the guest is tested
// against something else than what it will be given.
func fatImage(label, name string, content []byte) []byte {
	const (
		sector, clusterSectors, total = 512, 4, 2048
		fatSectors, rootEntries       = 2, 16
		cluster                       = sector * clusterSectors
		fatAt, rootAt                 = sector, sector * (1 + fatSectors)
		dataAt                        = rootAt + rootEntries*32
	)
	img := make([]byte, total*sector)
	le := binary.LittleEndian
	padded := label + strings.Repeat(" ", 11-len(label))

	copy(img, "\xeb\x3c\x90mkfs.tst")
	le.PutUint16(img[11:], sector)
	img[13] = clusterSectors
	le.PutUint16(img[14:], 1) // reserved sectors
	img[16] = 1               // FATs
	le.PutUint16(img[17:], rootEntries)
	le.PutUint16(img[19:], total)
	img[21] = 0xf8 // medium: fixed disk
	le.PutUint16(img[22:], fatSectors)
	img[38] = 0x29 // label and type follow
	copy(img[43:], padded+"FAT12   ")
	img[510], img[511] = 0x55, 0xaa

	setFAT := func(i, v int) {
		at := fatAt + i*3/2
		pair := int(le.Uint16(img[at:]))
		if i%2 == 0 {
			pair = pair&0xf000 | v
		} else {
			pair = pair&0x000f | v<<4
		}
		le.PutUint16(img[at:], uint16(pair))
	}
	setFAT(0, 0xff8)
	setFAT(1, 0xfff)
	clusters := (len(content) + cluster - 1) / cluster
	for i := range clusters {
		next := i + 3
		if i == clusters-1 {
			next = 0xfff
		}
		setFAT(i+2, next)
	}
	copy(img[rootAt:], padded)
	img[rootAt+11] = 0x08 // volume label
	entry := img[rootAt+32:]
	copy(entry, name)
	entry[11] = 0x01 // read only
	le.PutUint16(entry[26:], 2)
	le.PutUint32(entry[28:], uint32(len(content)))
	copy(img[dataAt:], content)
	return img
}
