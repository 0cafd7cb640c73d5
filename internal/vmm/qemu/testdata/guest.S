# SPDX-FileCopyrightText: 2026 IronCore contributors
# SPDX-License-Identifier: Apache-2.0
#
# A guest in one boot sector, for the conformance suite on emulated q35. It
# shows its Ignition payload (fw_cfg file opt/com.coreos/config) and READY on
# the first serial port, echoes what is typed, powers off at "!" and at the
# power button, and resets at "~". It lets go of devices as soon as it is asked
# to, unless "h" was typed; "l" ends that. Both are echoed, too.
#
#   as --32 -o guest.o guest.S && ld -m elf_i386 -Ttext 0x7c00 --oformat binary -o guest.bin guest.o

.code16
.intel_syntax noprefix
.globl _start
_start:
	cli
	xor	ax, ax
	mov	ds, ax
	mov	es, ax
	mov	ss, ax
	mov	sp, 0x7c00
	cld
	mov	dx, 0x602		# PM1_EN: let the power button show in PM1_STS
	mov	ax, 0x100
	out	dx, ax

	mov	dx, 0x510		# fw_cfg selector: the file directory
	mov	ax, 0x19
	out	dx, ax
	inc	dx			# fw_cfg data
	in	al, dx			# number of entries, big endian, 32 bit
	in	al, dx
	in	al, dx
	mov	ch, al
	in	al, dx
	mov	cl, al
entry:	jcxz	ready
	push	cx
	mov	di, 0x8000		# size.32 select.16 reserved.16 name[56]
	mov	cx, 64
	rep	insb
	mov	si, 0x8008
	mov	di, offset name
	mov	cx, 22			# with the closing NUL
	repe	cmpsb
	pop	cx
	je	found
	loop	entry
	jmp	ready

found:	mov	ax, [0x8004]
	xchg	al, ah
	mov	dx, 0x510
	out	dx, ax
	mov	bx, [0x8002]
	xchg	bl, bh
	mov	si, offset payload
	call	puts
	mov	dx, 0x511
1:	test	bx, bx
	jz	ready
	in	al, dx
	call	putc
	dec	bx
	jmp	1b

ready:	mov	byte ptr [0x9000], 'l'
	mov	si, offset up
	call	puts
poll:	cmp	byte ptr [0x9000], 'h'
	je	button
	mov	cx, 32			# buses that may have something to let go of
bus:	mov	dx, 0xcd0		# ACPI PCI hot-plug of q35: which bus,
	movzx	eax, cx
	dec	ax
	out	dx, eax
	mov	dx, 0xcc4		# what shall go,
	in	eax, dx
	test	eax, eax
	jz	2f
	add	dx, 4			# let it go
	out	dx, eax
2:	loop	bus
button:	mov	dx, 0x600		# PM1_STS
	in	ax, dx
	test	ah, 1
	jnz	off
	mov	dx, 0x3fd
	in	al, dx
	test	al, 1
	jz	poll
	mov	dx, 0x3f8
	in	al, dx
	cmp	al, '!'
	je	off
	cmp	al, '~'
	je	reset
	cmp	al, 'h'
	je	hold
	cmp	al, 'l'
	jne	echo
hold:	mov	[0x9000], al
echo:	call	putc
	jmp	poll

off:	mov	dx, 0x604		# PM1_CNT: S5
	mov	ax, 0x2000
	out	dx, ax
	jmp	halt
reset:	mov	dx, 0xcf9
	mov	al, 6
	out	dx, al
halt:	hlt
	jmp	halt

puts:	lodsb
	test	al, al
	jz	2f
	call	putc
	jmp	puts
putc:	push	ax
	push	dx
	mov	ah, al
	mov	dx, 0x3fd
1:	in	al, dx
	test	al, 0x20
	jz	1b
	mov	dx, 0x3f8
	mov	al, ah
	out	dx, al
	pop	dx
	pop	ax
2:	ret

name:	.asciz	"opt/com.coreos/config"
payload:	.asciz	"IGNITION "
up:	.asciz	"\r\nREADY\r\n"
	.org	510
	.word	0xaa55
