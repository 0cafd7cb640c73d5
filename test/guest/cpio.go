// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"io"
)

// File type bits of a cpio mode, as in stat(2).
const (
	modeDir     = 0o040000
	modeRegular = 0o100000
	modeSymlink = 0o120000
	modeChar    = 0o020000
)

// cpioWriter writes the "newc" archive that the kernel unpacks as initramfs (Documentation/driver-api/early-userspace
// in the kernel tree). Times and owners are zero, so equal content gives equal bytes. The first error sticks.
type cpioWriter struct {
	w     io.Writer
	inode uint32
	size  int64
	err   error
}

type cpioEntry struct {
	name         string
	mode         uint32
	data         []byte
	major, minor uint32
}

func (c *cpioWriter) dir(name string) { c.add(cpioEntry{name: name, mode: modeDir | 0o755}) }

func (c *cpioWriter) file(name string, perm uint32, data []byte) {
	c.add(cpioEntry{name: name, mode: modeRegular | perm, data: data})
}

func (c *cpioWriter) symlink(name, target string) {
	c.add(cpioEntry{name: name, mode: modeSymlink | 0o777, data: []byte(target)})
}

func (c *cpioWriter) charDevice(name string, perm, major, minor uint32) {
	c.add(cpioEntry{name: name, mode: modeChar | perm, major: major, minor: minor})
}

// close writes the trailer; it does not close the underlying writer.
func (c *cpioWriter) close() error {
	c.inode = 0
	c.write(cpioHeader(0, cpioEntry{name: "TRAILER!!!"}, 1))
	c.pad()
	return c.err
}

func (c *cpioWriter) add(e cpioEntry) {
	c.inode++
	links := uint32(1)
	if e.mode&modeDir != 0 && e.mode&modeRegular == 0 {
		links = 2
	}
	c.write(cpioHeader(c.inode, e, links))
	c.pad()
	c.write(e.data)
	c.pad()
}

// cpioHeader is the fixed header with the NUL-terminated name behind it.
func cpioHeader(inode uint32, e cpioEntry, links uint32) []byte {
	const magic = "070701"
	h := fmt.Sprintf("%s%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", magic,
		inode, e.mode, 0, 0, links, 0, len(e.data), 0, 0, e.major, e.minor, len(e.name)+1, 0)
	return append([]byte(h+e.name), 0)
}

func (c *cpioWriter) write(b []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(b)
	c.size += int64(n)
	c.err = err
}

// pad fills up to the next multiple of four bytes, counted from the archive's start.
func (c *cpioWriter) pad() {
	if rest := c.size % 4; rest != 0 {
		c.write(make([]byte, 4-rest))
	}
}
