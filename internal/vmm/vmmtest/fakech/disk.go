// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"syscall"
)

// sectorSize is what disk sizes must be a multiple of, in bytes.
const sectorSize = 512

// disk is an opened image.
type disk struct {
	f        *os.File
	path     string
	readonly bool
	whole    bool // lock the whole file instead of the range of the image
	kind     string
}

// openDisk opens an image and settles its type: an unspecified one is detected and written back.
func openDisk(c *DiskConfig, v dialect) (*disk, *chainError) {
	if c.Path == nil {
		return nil, failed("No disk path was specified when one was expected")
	}
	flags := os.O_RDWR
	if c.Readonly {
		flags = os.O_RDONLY
	}
	if c.Direct {
		flags |= directFlag
	}
	f, err := os.OpenFile(*c.Path, flags, 0)
	if err == nil {
		// Reading the head of a directory fails as opening it for writing does.
		if st, serr := f.Stat(); serr == nil && st.IsDir() {
			f.Close()
			err = syscall.EISDIR
		}
	}
	if err != nil {
		return nil, failed("Cannot open disk path",
			fmt.Sprintf("I/O error (path=%s op=open)", *c.Path), osText(err))
	}
	d := &disk{f: f, path: *c.Path, readonly: c.Readonly, whole: c.LockGranularity == "Full"}
	d.kind = d.detect(v)
	if c.ImageType == "Unknown" {
		c.ImageType = d.kind
	}
	if c.ImageType != d.kind {
		f.Close()
		return nil, failed(fmt.Sprintf("Disk image type does not match expected type: specified = %s, detected = %s",
			typeName(c.ImageType), typeName(d.kind)))
	}
	return d, nil
}

func typeName(kind string) string {
	return map[string]string{
		"Raw": "raw", "Qcow2": "qcow2", "FixedVhd": "vhd", "Vhdx": "vhdx", "FlatVmdk": "vmdk",
	}[kind]
}

// Close gives the image and its lock back.
func (d *disk) Close() error { return d.f.Close() }

// detect reads magic numbers. The reads are a block long and aligned, for O_DIRECT.
func (d *disk) detect(dialect) string {
	head := alignedBlock()
	n, _ := d.f.ReadAt(head, 0)
	head = head[:n]
	switch {
	case n >= 4 && string(head[:4]) == "QFI\xfb":
		return "Qcow2"
	case n >= 8 && string(head[:8]) == "vhdxfile":
		return "Vhdx"
	}
	if size, err := d.deviceSize(); err == nil && size >= sectorSize && size%4096 == sectorSize {
		foot := make([]byte, 8)
		if n, _ := d.f.ReadAt(foot, size-sectorSize); n == 8 && string(foot) == "conectix" {
			return "FixedVhd"
		}
	}
	return "Raw"
}

// deviceSize is the size of the file or block device in bytes.
func (d *disk) deviceSize() (int64, error) { return d.f.Seek(0, io.SeekEnd) }

// size is the size the guest sees, in bytes.
func (d *disk) size() int64 {
	if d.kind == "Qcow2" {
		head := alignedBlock()
		if n, _ := d.f.ReadAt(head, 0); n >= 32 {
			return int64(binary.BigEndian.Uint64(head[24:]))
		}
	}
	n, err := d.deviceSize()
	if err != nil {
		return 0
	}
	return n
}

// lock takes the advisory lock: shared when readonly, over the larger of logical and physical size.
func (d *disk) lock() *chainError {
	length := int64(0)
	if !d.whole {
		length = d.size()
		var st syscall.Stat_t
		if err := syscall.Fstat(int(d.f.Fd()), &st); err == nil {
			length = max(length, st.Blocks*512)
		}
	}
	name := "Write"
	if d.readonly {
		name = "Read"
	}
	busy, err := lockRange(d.f, !d.readonly, length)
	what := fmt.Sprintf("Failed to get %s lock for disk image: %s", name, d.path)
	switch {
	case busy:
		return failed(what, "The file is already locked")
	case err != nil:
		return failed(what, osText(err))
	default:
		return nil
	}
}

// backed tells whether a qcow2 image names another file below it.
func (d *disk) backed() bool {
	head := alignedBlock()
	n, _ := d.f.ReadAt(head, 0)
	return n >= 16 && binary.BigEndian.Uint64(head[8:]) != 0
}

// resize changes the image itself. A raw file is cut without a question; locks are not extended.
func (d *disk) resize(size uint64) *chainError {
	if size%sectorSize != 0 {
		return failed("Disk image size is not a multiple of 512")
	}
	fail := func(where, text string) *chainError {
		return failed("Disk resize failed", "I/O error"+where, "Resize failed", text)
	}
	st, err := d.f.Stat()
	if err != nil {
		return fail("", osText(err))
	}
	switch {
	case st.Mode()&os.ModeDevice != 0:
		if n, _ := d.deviceSize(); uint64(n) != size {
			return fail("", fmt.Sprintf("Block device size %d does not match requested size %d", n, size))
		}
	case d.kind == "Qcow2":
		if d.backed() {
			return fail(" (op=resize)", "resize not supported with backing files")
		}
		if int64(size) < d.size() {
			return fail(" (op=resize)", "shrinking QCOW2 images is not supported")
		}
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], size)
		if _, err := d.f.WriteAt(b[:], 24); err != nil {
			return fail(" (op=resize)", osText(err))
		}
	case d.kind != "Raw":
		return fail("", "Unsupported feature")
	default:
		if err := d.f.Truncate(int64(size)); err != nil {
			return fail("", osText(err))
		}
	}
	return nil
}
