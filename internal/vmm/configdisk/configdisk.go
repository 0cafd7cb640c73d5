// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package configdisk writes the disk by which a guest gets its Ignition payload when nothing else carries it: a
// small FAT16 file system labelled IGNITION with the one file config.ign. It exists so that every driver makes the
// same disk, bit by bit the same for the same payload, without mkfs, loop devices or root. It must never log a
// payload, leave a half-written disk under the final name, or let anybody but the owner read it.
package configdisk

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	// Label is the label of the file system.
	Label = "IGNITION"
	// FileName is the name of the file, in its root directory.
	FileName = "config.ign"
	// MaxPayload is the greatest payload in bytes, far above the 4 MiB of a gRPC message that could bring one.
	MaxPayload = 16 << 20
)

// ErrTooLarge means that a payload is longer than MaxPayload.
var ErrTooLarge = errors.New("the Ignition payload does not fit a config disk")

// The layout is that of Microsoft's FAT specification 1.03. The number of clusters alone decides whether a file
// system is FAT12, FAT16 or FAT32.
const (
	sectorSize   = 512
	fatCopies    = 2
	reserved     = 1
	rootEntries  = 512
	rootSectors  = rootEntries * entrySize / sectorSize
	entrySize    = 32
	minClusters  = 4085 + 16 // the specification advises to stay 16 off the border
	firstCluster = 2
	endOfChain   = 0xffff
	mediaFixed   = 0xf8
	epochDate    = 1<<5 | 1 // 1980-01-01, the earliest; a real date would make each disk differ

	attrReadOnly = 0x01
	attrVolumeID = 0x08
	attrLongName = 0x0f
)

// layout holds sector numbers and counts. A cluster is one sector.
type layout struct {
	clusters   int
	fatSectors int
	used       int // clusters of the payload
}

func layoutFor(size int) layout {
	used := (size + sectorSize - 1) / sectorSize
	clusters := max(minClusters, used)
	return layout{
		clusters:   clusters,
		fatSectors: ((clusters+firstCluster)*2 + sectorSize - 1) / sectorSize,
		used:       used,
	}
}

func (l layout) root() int  { return reserved + fatCopies*l.fatSectors }
func (l layout) data() int  { return l.root() + rootSectors }
func (l layout) total() int { return l.data() + l.clusters }

// Write makes the disk under path with mode 0600, replacing what is there at once or not at all.
func Write(path string, payload []byte) (err error) {
	if len(payload) > MaxPayload {
		return fmt.Errorf("%d bytes, at most %d are possible: %w", len(payload), MaxPayload, ErrTooLarge)
	}
	// CreateTemp gives mode 0600.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write config disk: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			_ = os.Remove(f.Name())
			err = fmt.Errorf("write config disk: %w", err)
		}
	}()
	l := layoutFor(len(payload))
	if _, err := f.Write(metadata(l, payload)); err != nil {
		return err
	}
	if _, err := f.Write(payload); err != nil {
		return err
	}
	if err := f.Truncate(int64(l.total()) * sectorSize); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// metadata returns all that comes before the payload's first cluster.
func metadata(l layout, payload []byte) []byte {
	image := make([]byte, l.data()*sectorSize)
	sum := sha256.Sum256(payload)
	bootSector(image, l, sum[:4])
	for i := range fatCopies {
		allocation(image[(reserved+i*l.fatSectors)*sectorSize:], l.used)
	}
	rootDirectory(image[l.root()*sectorSize:], len(payload))
	return image
}

func bootSector(b []byte, l layout, volumeID []byte) {
	le := binary.LittleEndian
	copy(b[0:], []byte{0xeb, 0x3c, 0x90}) // a jump, which readers check for
	copy(b[3:], "MSWIN4.1")               // the name that the specification advises
	le.PutUint16(b[11:], sectorSize)
	b[13] = 1 // sectors a cluster
	le.PutUint16(b[14:], reserved)
	b[16] = fatCopies
	le.PutUint16(b[17:], rootEntries)
	if l.total() < 1<<16 {
		le.PutUint16(b[19:], uint16(l.total()))
	} else {
		le.PutUint32(b[32:], uint32(l.total()))
	}
	b[21] = mediaFixed
	le.PutUint16(b[22:], uint16(l.fatSectors))
	le.PutUint16(b[24:], 32) // sectors a track and heads: nobody reads them, zeros make some readers frown
	le.PutUint16(b[26:], 2)
	b[36] = 0x80 // drive number
	b[38] = 0x29 // the next three fields are there
	copy(b[39:43], volumeID)
	copy(b[43:54], padded(Label, 11))
	copy(b[54:62], "FAT16   ")
	b[510], b[511] = 0x55, 0xaa
}

// allocation chains the payload's clusters, which lie one after the other from the first one on.
func allocation(fat []byte, used int) {
	le := binary.LittleEndian
	le.PutUint16(fat[0:], 0xff00|mediaFixed)
	le.PutUint16(fat[2:], endOfChain)
	for i := range used {
		next := uint16(firstCluster + i + 1)
		if i == used-1 {
			next = endOfChain
		}
		le.PutUint16(fat[(firstCluster+i)*2:], next)
	}
}

// rootDirectory has the label, the file's long name and its short one. The long name keeps the lower case.
func rootDirectory(dir []byte, size int) {
	le := binary.LittleEndian
	short := padded("CONFIG", 8) + "IGN"

	label := dir[0*entrySize:]
	copy(label, padded(Label, 11))
	label[11] = attrVolumeID
	le.PutUint16(label[24:], epochDate)

	long := dir[1*entrySize:]
	long[0] = 0x40 | 1 // the last, and the first, of one
	long[11] = attrLongName
	long[13] = checksum(short)
	offsets := [...]int{1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30}
	for i, at := range offsets {
		switch {
		case i < len(FileName):
			le.PutUint16(long[at:], uint16(FileName[i]))
		case i > len(FileName):
			le.PutUint16(long[at:], 0xffff)
		}
	}

	file := dir[2*entrySize:]
	copy(file, short)
	file[11] = attrReadOnly
	le.PutUint16(file[16:], epochDate)
	le.PutUint16(file[18:], epochDate)
	le.PutUint16(file[24:], epochDate)
	if size > 0 {
		le.PutUint16(file[26:], firstCluster)
	}
	le.PutUint32(file[28:], uint32(size))
}

// checksum ties a long name to its short one.
func checksum(short string) byte {
	var sum byte
	for i := range len(short) {
		sum = sum>>1 | sum<<7
		sum += short[i]
	}
	return sum
}

func padded(s string, n int) string { return fmt.Sprintf("%-*s", n, s) }
