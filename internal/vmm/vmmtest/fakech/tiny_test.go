// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"encoding/binary"
	"os"
)

// tinyText is what the tiny guest prints at boot.
const tinyText = "hello from tiny\r\n"

// tinyELF writes a PVH kernel of a few instructions for the real binary: it prints tinyText on the first
// serial port, then polls it. Typed p powers off through ACPI, r resets through the i8042, f executes an
// undefined instruction without an IDT, which is a triple fault; everything else is echoed.
func tinyELF(path string) error {
	const base, offset, noteAt = 0x100000, 0x1000, 0x200
	code := []byte{0xbe, 0, 0, 0, 0} // mov esi, text
	jump := func(op byte) int { code = append(code, op, 0); return len(code) - 1 }
	land := func(at int) { code[at] = byte(len(code) - at - 1) }
	back := func(op byte, to int) { code = append(code, op, byte(to-len(code)-2)) }
	port := func(n uint16) { code = append(code, 0x66, 0xba, byte(n), byte(n>>8)) } // mov dx, n

	print := len(code)
	code = append(code, 0xac, 0x84, 0xc0) // lodsb; test al, al
	printed := jump(0x74)
	port(0x3f8)
	code = append(code, 0xee) // out dx, al
	back(0xeb, print)
	land(printed)
	poll := len(code)
	port(0x3fd)
	code = append(code, 0xec, 0xa8, 1) // in al, dx; test al, 1
	back(0x74, poll)
	port(0x3f8)
	code = append(code, 0xec) // in al, dx
	command := func(c byte) int { code = append(code, 0x3c, c); return jump(0x74) }
	off, reset, fault := command('p'), command('r'), command('f')
	code = append(code, 0xee)
	back(0xeb, poll)
	land(off)
	port(0x600)
	code = append(code, 0xb0, 0x34, 0xee)
	back(0xeb, poll)
	land(reset)
	port(0x64)
	code = append(code, 0xb0, 0xfe, 0xee)
	back(0xeb, poll)
	land(fault)
	code = append(code, 0x0f, 0x0b)
	binary.LittleEndian.PutUint32(code[1:], uint32(base+len(code)))
	code = append(append(code, tinyText...), 0)

	le := binary.LittleEndian
	file := make([]byte, offset)
	copy(file, "\x7fELF\x02\x01\x01")
	for i, v := range []uint16{2, 62} {
		le.PutUint16(file[16+2*i:], v)
	}
	le.PutUint32(file[20:], 1)
	le.PutUint64(file[24:], base)
	le.PutUint64(file[32:], 64)
	for i, v := range []uint16{64, 56, 2} {
		le.PutUint16(file[52+2*i:], v)
	}
	header := func(at int, kind, flags uint32, off, addr, size, align uint64) {
		le.PutUint32(file[at:], kind)
		le.PutUint32(file[at+4:], flags)
		for i, v := range []uint64{off, addr, addr, size, size, align} {
			le.PutUint64(file[at+8+8*i:], v)
		}
	}
	header(64, 1, 7, offset, base, uint64(len(code)), 0x1000)
	header(120, 4, 4, noteAt, 0, 24, 4)
	for i, v := range []uint32{4, 8, 18} { // the PVH entry point note
		le.PutUint32(file[noteAt+4*i:], v)
	}
	copy(file[noteAt+12:], "Xen\x00")
	le.PutUint64(file[noteAt+16:], base)
	return os.WriteFile(path, append(file, code...), 0o600)
}
