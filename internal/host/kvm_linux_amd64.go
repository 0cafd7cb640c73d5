// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"
)

const (
	kvmGetSupportedCPUID  = 0xC008AE05
	kvmSetTSSAddr         = 0xAE47
	kvmSetIdentityMapAddr = 0x4008AE48
	kvmSetRegs            = 0x4090AE82
	kvmGetSregs           = 0x8138AE83
	kvmSetSregs           = 0x4138AE84
	kvmSetCPUID2          = 0x4008AE90
	kvmEnableCap          = 0x4068AEA3
	kvmSetXCRS            = 0x4188AEA7

	capSplitIRQChip = 121
	ioapicPins      = 24

	vmType    = 0
	guestBase = 0
)

var archCapabilities = []capability{
	{0, "IRQCHIP"},
	{capSplitIRQChip, "SPLIT_IRQCHIP"},
	{4, "SET_TSS_ADDR"},
	{7, "EXT_CPUID"},
	{41, "VCPU_EVENTS"},
	{55, "XSAVE"},
	{56, "XCRS"},
	{72, "TSC_DEADLINE_TIMER"},
}

// Guest-physical addresses; the first 2 MiB are mapped to themselves by one large page.
const (
	addrPML4    = 0x1000
	addrPDPT    = 0x2000
	addrPD      = 0x3000
	addrScratch = 0x5000 // 16 bytes for cmpxchg16b, then the sum, then the stage
	addrXSave   = 0x6000
	addrStack   = 0x9000
	addrCode    = 0x10000

	offSum   = addrScratch + 16
	offStage = addrScratch + 24
)

// Stages the guest writes down as it goes.
const (
	stageCX16 = iota + 1
	stageXSave
	stageLoop
	stageDone
)

// Features the guest is told to try, in R9.
const (
	tryCX16  = 1
	tryXSave = 2
)

const (
	portResult  = 0xf4
	resultRight = 1
	marker      = 0x0123456789abcdef
)

// payload is 64-bit kernel-mode code. Besides the loop it uses the two instructions every distribution kernel uses
// while booting and an emulating KVM is known not to have. In: RDI scratch, RSI XSAVE area, R8D number of turns,
// R9D features, R10 and R11 marker.
var payload = []byte{
	0xc6, 0x47, 0x18, 0x01, //                         mov byte [rdi+24], stageCX16
	0x41, 0xf7, 0xc1, 0x01, 0x00, 0x00, 0x00, //       test r9d, tryCX16
	0x74, 0x19, //                                     jz xsave
	0x48, 0x8b, 0x07, //                               mov rax, [rdi]
	0x48, 0x8b, 0x57, 0x08, //                         mov rdx, [rdi+8]
	0x4c, 0x89, 0xd3, //                               mov rbx, r10
	0x4c, 0x89, 0xd9, //                               mov rcx, r11
	0xf0, 0x48, 0x0f, 0xc7, 0x0f, //                   lock cmpxchg16b [rdi]
	0x75, 0x57, //                                     jnz fail
	0x4c, 0x39, 0x17, //                               cmp [rdi], r10
	0x75, 0x52, //                                     jne fail
	// xsave:
	0xc6, 0x47, 0x18, 0x02, //                         mov byte [rdi+24], stageXSave
	0x41, 0xf7, 0xc1, 0x02, 0x00, 0x00, 0x00, //       test r9d, tryXSave
	0x74, 0x29, //                                     jz sum
	0x31, 0xd2, //                                     xor edx, edx
	0xb8, 0x03, 0x00, 0x00, 0x00, //                   mov eax, 3 (x87 and SSE)
	0x66, 0x49, 0x0f, 0x6e, 0xc2, //                   movq xmm0, r10
	0x48, 0x0f, 0xae, 0x26, //                         xsave64 [rsi]
	0x66, 0x0f, 0xef, 0xc0, //                         pxor xmm0, xmm0
	0xb8, 0x03, 0x00, 0x00, 0x00, //                   mov eax, 3
	0x31, 0xd2, //                                     xor edx, edx
	0x48, 0x0f, 0xae, 0x2e, //                         xrstor64 [rsi]
	0x66, 0x48, 0x0f, 0x7e, 0xc0, //                   movq rax, xmm0
	0x4c, 0x39, 0xd0, //                               cmp rax, r10
	0x75, 0x1c, //                                     jne fail
	// sum:
	0xc6, 0x47, 0x18, 0x03, //                         mov byte [rdi+24], stageLoop
	0x44, 0x89, 0xc1, //                               mov ecx, r8d
	0x31, 0xc0, //                                     xor eax, eax
	0x48, 0x01, 0xc8, //                         turn: add rax, rcx
	0xff, 0xc9, //                                     dec ecx
	0x75, 0xf9, //                                     jnz turn
	0x48, 0x89, 0x47, 0x10, //                         mov [rdi+16], rax
	0xc6, 0x47, 0x18, 0x04, //                         mov byte [rdi+24], stageDone
	0xb0, resultRight, //                              mov al, resultRight
	0xe6, portResult, //                               out portResult, al
	0xb0, 0x02, //                               fail: mov al, 2
	0xe6, portResult, //                               out portResult, al
	0xf4, //                                           hlt
}

type kvmRegs struct {
	rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp uint64
	r8, r9, r10, r11, r12, r13, r14, r15   uint64
	rip, rflags                            uint64
}

type kvmSegment struct {
	base                                                uint64
	limit                                               uint32
	selector                                            uint16
	kind, present, dpl, db, s, l, g, avl, unusable, pad uint8
}

type kvmTable struct {
	base  uint64
	limit uint16
	pad   [3]uint16
}

type kvmSregs struct {
	cs, ds, es, fs, gs, ss, tr, ldt kvmSegment
	gdt, idt                        kvmTable
	cr0, cr2, cr3, cr4, cr8         uint64
	efer, apicBase                  uint64
	interrupts                      [4]uint64
}

type cpuidEntry struct {
	function, index, flags uint32
	eax, ebx, ecx, edx     uint32
	pad                    [3]uint32
}

type cpuidTable struct {
	count, pad uint32
	entries    [256]cpuidEntry // 256 is the kernel's own limit
}

// prepareVM sets up what the processor and an in-kernel interrupt controller need, as hypervisors do.
func (t *testVM) prepareVM() error {
	// Old Intel processors need three pages and one page of unused address space; others ignore this.
	identity := new(uint64)
	*identity = 0xfeffc000
	if err := ioctlPtr(t.vm, kvmSetIdentityMapAddr, unsafe.Pointer(identity)); err != nil {
		return fmt.Errorf("set identity map address: %w", err)
	}
	if _, err := ioctl(t.vm, kvmSetTSSAddr, 0xfeffd000); err != nil {
		return fmt.Errorf("set TSS address: %w", err)
	}
	enable := struct {
		capability, flags uint32
		args              [4]uint64
		pad               [64]byte
	}{capability: capSplitIRQChip, args: [4]uint64{ioapicPins}}
	if err := ioctlPtr(t.vm, kvmEnableCap, unsafe.Pointer(&enable)); err != nil {
		return fmt.Errorf("enable the split interrupt controller: %w", err)
	}
	return nil
}

// prepareVCPU writes the payload and puts the vCPU at its start in 64-bit mode.
func (t *testVM) prepareVCPU() error {
	features, err := t.setCPUID()
	if err != nil {
		return err
	}
	const present, writable, large = 1, 2, 1 << 7
	put := func(at int, v uint64) { binary.LittleEndian.PutUint64(t.memory[at:], v) }
	put(addrPML4, addrPDPT|present|writable)
	put(addrPDPT, addrPD|present|writable)
	put(addrPD, 0|present|writable|large)
	put(addrScratch, 1)
	put(addrScratch+8, 2)
	copy(t.memory[addrCode:], payload)

	if err := t.enterLongMode(features); err != nil {
		return err
	}
	if err := t.setXCR0(features); err != nil {
		return err
	}
	regs := kvmRegs{
		rip: addrCode, rflags: 2, rsp: addrStack, rdi: addrScratch, rsi: addrXSave,
		r8: uint64(t.turns), r9: features & t.features, r10: marker, r11: marker,
	}
	if err := ioctlPtr(t.vcpu, kvmSetRegs, unsafe.Pointer(&regs)); err != nil {
		return fmt.Errorf("set registers: %w", err)
	}
	return nil
}

// setCPUID gives the vCPU all that KVM offers and returns the features worth trying.
func (t *testVM) setCPUID() (features uint64, err error) {
	table := &cpuidTable{}
	table.count = uint32(len(table.entries))
	if err := ioctlPtr(t.dev, kvmGetSupportedCPUID, unsafe.Pointer(table)); err != nil {
		return 0, fmt.Errorf("ask for processor features: %w", err)
	}
	if err := ioctlPtr(t.vcpu, kvmSetCPUID2, unsafe.Pointer(table)); err != nil {
		return 0, fmt.Errorf("set processor features: %w", err)
	}
	for _, e := range table.entries[:table.count] {
		if e.function != 1 {
			continue
		}
		if e.ecx&(1<<13) != 0 {
			features |= tryCX16
		}
		if e.ecx&(1<<26) != 0 {
			features |= tryXSave
		}
	}
	return features, nil
}

func (t *testVM) enterLongMode(features uint64) error {
	const (
		cr0PE, cr0MP, cr0ET, cr0NE, cr0WP, cr0PG       = 1 << 0, 1 << 1, 1 << 4, 1 << 5, 1 << 16, 1 << 31
		cr4PAE, cr4OSFXSR, cr4OSXMMEXCPT, cr4OSXSAVE   = 1 << 5, 1 << 9, 1 << 10, 1 << 18
		eferLME, eferLMA                               = 1 << 8, 1 << 10
		codeExecuteReadAccessed, dataReadWriteAccessed = 11, 3
	)
	var s kvmSregs
	if err := ioctlPtr(t.vcpu, kvmGetSregs, unsafe.Pointer(&s)); err != nil {
		return fmt.Errorf("read control registers: %w", err)
	}
	code := kvmSegment{limit: 0xffffffff, selector: 0x08, kind: codeExecuteReadAccessed, present: 1, s: 1, l: 1, g: 1}
	data := kvmSegment{limit: 0xffffffff, selector: 0x10, kind: dataReadWriteAccessed, present: 1, s: 1, db: 1, g: 1}
	s.cs, s.ds, s.es, s.fs, s.gs, s.ss = code, data, data, data, data, data
	s.cr3 = addrPML4
	s.cr0 = cr0PE | cr0MP | cr0ET | cr0NE | cr0WP | cr0PG
	s.cr4 = cr4PAE | cr4OSFXSR | cr4OSXMMEXCPT
	if features&tryXSave != 0 {
		s.cr4 |= cr4OSXSAVE
	}
	s.efer = eferLME | eferLMA
	if err := ioctlPtr(t.vcpu, kvmSetSregs, unsafe.Pointer(&s)); err != nil {
		return fmt.Errorf("enter 64-bit mode: %w", err)
	}
	return nil
}

// setXCR0 switches the x87 and SSE state on for xsave64. The guest could do that itself, but a processor emulated by
// QEMU 7.2 forgets what a nested guest sets.
func (t *testVM) setXCR0(features uint64) error {
	if features&tryXSave == 0 {
		return nil
	}
	type xcr struct {
		number, reserved uint32
		value            uint64
	}
	table := struct {
		count, flags uint32
		entries      [16]xcr
		pad          [16]uint64
	}{count: 1, entries: [16]xcr{{value: 3}}}
	if err := ioctlPtr(t.vcpu, kvmSetXCRS, unsafe.Pointer(&table)); err != nil {
		return fmt.Errorf("set XCR0: %w", err)
	}
	return nil
}

func (t *testVM) judge(reason uint32) error {
	if reason != exitIO {
		return fmt.Errorf("%w %s", t.judgeExit(reason), t.where())
	}
	offset := t.word64(offExitData + 8)
	port := *(*uint16)(unsafe.Pointer(&t.run[offExitData+2]))
	if port != portResult || offset >= uint64(len(t.run)) {
		return fmt.Errorf("the test guest made an unexpected access to port %#x %s", port, t.where())
	}
	sum := binary.LittleEndian.Uint64(t.memory[offSum:])
	n := uint64(t.turns)
	if t.run[offset] != resultRight || t.memory[offStage] != stageDone || sum != n*(n+1)/2 {
		return fmt.Errorf("the test guest got a wrong result %s", t.where())
	}
	return nil
}

func (t *testVM) judgeStopped() error {
	if t.memory[offStage] == stageLoop {
		return errors.New("kernel code runs far too slowly; it is emulated instruction by instruction rather than " +
			"run by the processor")
	}
	return errors.New("the test guest hung " + t.where())
}

// where tells how far the guest got.
func (t *testVM) where() string {
	switch t.memory[offStage] {
	case 0:
		return "before its first instruction"
	case stageCX16:
		return "at cmpxchg16b"
	case stageXSave:
		return "at xsave64/xrstor64"
	case stageLoop:
		return "while adding up numbers"
	default:
		return "after its work"
	}
}
