// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmmtest

import (
	"bytes"
	"encoding/binary"
)

// TinyGuestReady is what the tiny guest prints when it listens to its console.
const TinyGuestReady = "tiny-guest ready"

// TinyGuest returns a kernel of a few hundred bytes for VMMs that start PVH kernels and have Cloud Hypervisor's
// devices: an ELF file with the entry in 32-bit mode. It runs where no real kernel does, such as under a KVM that
// emulates each instruction. On the serial port at 0x3f8 it prints "oem: " with the Ignition payload's OEM string
// if there is one in SMBIOS, then TinyGuestReady; then it echoes what is typed, but for "!", which powers off
// through the sleep register at 0x600, and "~", which resets through the keyboard controller.
func TinyGuest() []byte {
	const (
		base   = 0x100000 // below is the VMM's
		header = 64 + 2*56
		note   = 20 // bytes of the PVH note
	)
	code := tinyCode(base + header + note)
	size := uint64(header + note + len(code))

	var out bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			// A bytes.Buffer takes everything.
			_ = binary.Write(&out, binary.LittleEndian, v)
		}
	}
	// ELF header: 64 bit, little endian, executable, x86-64.
	put([]byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00"), uint16(2), uint16(62), uint32(1),
		uint64(base+header+note), uint64(64), uint64(0), uint32(0), uint16(64), uint16(56), uint16(2), uint16(64), uint16(0), uint16(0))
	// Program headers: the whole file as the segment to load, and the note.
	put(uint32(1), uint32(7), uint64(0), uint64(base), uint64(base), size, size, uint64(4096))
	put(uint32(4), uint32(4), uint64(header), uint64(base+header), uint64(base+header), uint64(note), uint64(note), uint64(4))
	// XEN_ELFNOTE_PHYS32_ENTRY says where to enter in 32-bit mode.
	put(uint32(4), uint32(4), uint32(18), []byte("Xen\x00"), uint32(base+header+note))
	out.Write(code)
	return out.Bytes()
}

// assembler puts machine code together; jumps are to labels, within 127 bytes.
type assembler struct {
	base   uint32
	code   []byte
	labels map[string]int
	short  map[int]string // position of an 8-bit displacement
	long   map[int]string // position of a 32-bit displacement
	addr   map[int]string // position of a 32-bit address
}

func (a *assembler) label(name string)  { a.labels[name] = len(a.code) }
func (a *assembler) emit(bytes ...byte) { a.code = append(a.code, bytes...) }

// jump is opcode and label: 0xeb always, 0x74 if equal, 0x72 if below.
func (a *assembler) jump(opcode byte, label string) {
	a.emit(opcode, 0)
	a.short[len(a.code)-1] = label
}

func (a *assembler) call(label string) {
	a.emit(0xe8, 0, 0, 0, 0)
	a.long[len(a.code)-4] = label
}

// print calls print with the label's address in ESI.
func (a *assembler) print(label string) {
	a.emit(0xbe, 0, 0, 0, 0)
	a.addr[len(a.code)-4] = label
	a.call("print")
}

func (a *assembler) text(label, text string) {
	a.label(label)
	a.emit(append([]byte(text), 0)...)
}

func (a *assembler) link() []byte {
	for at, label := range a.short {
		a.code[at] = byte(a.labels[label] - at - 1)
	}
	for at, label := range a.long {
		binary.LittleEndian.PutUint32(a.code[at:], uint32(a.labels[label]-at-4))
	}
	for at, label := range a.addr {
		binary.LittleEndian.PutUint32(a.code[at:], a.base+uint32(a.labels[label]))
	}
	return a.code
}

func tinyCode(base uint32) []byte {
	a := &assembler{base: base, labels: map[string]int{}, short: map[int]string{}, long: map[int]string{}, addr: map[int]string{}}
	a.emit(0xbc, 0x00, 0x00, 0x20, 0x00) // mov esp, 0x200000
	a.print("hello")
	a.findOEMString()

	a.label("ready")
	a.print("readyText")
	a.label("poll")
	a.emit(0x66, 0xba, 0xfd, 0x03) // mov dx, 0x3fd (line status)
	a.emit(0xec)                   // in al, dx
	a.emit(0xa8, 0x01)             // test al, 1 (data is there)
	a.jump(0x74, "poll")
	a.emit(0x66, 0xba, 0xf8, 0x03) // mov dx, 0x3f8
	a.emit(0xec)                   // in al, dx
	a.emit(0x3c, '!')
	a.jump(0x74, "powerOff")
	a.emit(0x3c, '~')
	a.jump(0x74, "reset")
	a.emit(0xee) // out dx, al
	a.jump(0xeb, "poll")

	a.label("powerOff")
	a.emit(0x66, 0xba, 0x00, 0x06) // mov dx, 0x600
	a.emit(0xb0, 5<<2|1<<5)        // mov al, sleep type S5 with sleep enable
	a.emit(0xee)
	a.jump(0xeb, "halt")
	a.label("reset")
	a.emit(0xb0, 0xfe, 0xe6, 0x64) // mov al, 0xfe; out 0x64, al
	a.label("halt")
	a.emit(0xf4)
	a.jump(0xeb, "halt")

	a.label("print") // zero-terminated text at ESI
	a.emit(0x66, 0xba, 0xf8, 0x03)
	a.label("next")
	a.emit(0xac, 0x84, 0xc0) // lodsb; test al, al
	a.jump(0x74, "return")
	a.emit(0xee)
	a.jump(0xeb, "next")
	a.label("return")
	a.emit(0xc3)

	a.text("hello", "tiny-guest starts\r\n")
	a.text("oem", "oem: ")
	a.text("line", "\r\n")
	a.text("readyText", TinyGuestReady+"\r\n")
	return a.link()
}

// findOEMString looks through the first 4 KiB of SMBIOS for "opt/" and prints the string that begins so.
func (a *assembler) findOEMString() {
	a.emit(0xbe, 0x00, 0x00, 0x0f, 0x00) // mov esi, 0xf0000
	a.label("find")
	a.emit(0x81, 0x3e, 'o', 'p', 't', '/') // cmp dword [esi], "opt/"
	a.jump(0x74, "found")
	a.emit(0x46)                               // inc esi
	a.emit(0x81, 0xfe, 0x00, 0x10, 0x0f, 0x00) // cmp esi, 0xf1000
	a.jump(0x72, "find")
	a.jump(0xeb, "ready")
	a.label("found")
	a.emit(0x89, 0xf7) // mov edi, esi
	a.print("oem")
	a.emit(0x89, 0xfe) // mov esi, edi
	a.call("print")
	a.print("line")
}
