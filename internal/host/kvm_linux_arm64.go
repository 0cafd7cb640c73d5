// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

const (
	kvmSetOneReg       = 0x4010AEAC
	kvmVCPUInit        = 0x4020AEAE
	kvmPreferredTarget = 0x8020AEAF

	featurePSCI = 1 << 2 // KVM_ARM_VCPU_PSCI_0_2

	// regPC is KVM_REG_ARM64 | KVM_REG_SIZE_U64 | KVM_REG_ARM_CORE | (offset of pc in user_pt_regs) / 4.
	regPC = 0x6030_0000_0010_0000 | 256/4

	vmType    = 0           // the default size of guest addresses
	guestBase = 0x4000_0000 // above the device that takes the result
	resultAt  = 0x1000_0000
)

var archCapabilities = []capability{{70, "ONE_REG"}, {102, "ARM_PSCI_0_2"}}

// payload runs at EL1 with the MMU off, as a kernel does at its first instruction. X1 counts down, X0 adds up; the sum
// is stored to an address without memory, which ends the run.
func payload(turns uint32) []uint32 {
	return []uint32{
		0xd2800000,                   //       mov  x0, #0
		0xd2800001 | turns&0xffff<<5, //       movz x1, #(turns & 0xffff)
		0xf2a00001 | turns>>16<<5,    //       movk x1, #(turns >> 16), lsl #16
		0xd2a00002 | resultAt>>16<<5, //       movz x2, #(resultAt >> 16), lsl #16
		0x8b010000,                   // turn: add  x0, x0, x1
		0xf1000421,                   //       subs x1, x1, #1
		0x54ffffc1,                   //       b.ne turn
		0xf9000040,                   //       str  x0, [x2]
		0x14000000,                   //       b    .
	}
}

// prepareVM has nothing to do: a vCPU without an interrupt controller is enough for the payload.
func (t *testVM) prepareVM() error { return nil }

func (t *testVM) prepareVCPU() error {
	var target struct {
		target   uint32
		features [7]uint32
	}
	if err := ioctlPtr(t.vm, kvmPreferredTarget, unsafe.Pointer(&target)); err != nil {
		return fmt.Errorf("ask for the processor type: %w", err)
	}
	target.features[0] |= featurePSCI
	if err := ioctlPtr(t.vcpu, kvmVCPUInit, unsafe.Pointer(&target)); err != nil {
		return fmt.Errorf("initialise the vCPU: %w", err)
	}
	for i, instruction := range payload(t.turns) {
		binary.LittleEndian.PutUint32(t.memory[4*i:], instruction)
	}
	// The kernel follows the address inside the structure, so the value must not move meanwhile.
	value := new(uint64)
	*value = guestBase
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(value)
	reg := struct{ id, addr uint64 }{id: regPC, addr: uint64(uintptr(unsafe.Pointer(value)))}
	if err := ioctlPtr(t.vcpu, kvmSetOneReg, unsafe.Pointer(&reg)); err != nil {
		return fmt.Errorf("set the program counter: %w", err)
	}
	return nil
}

func (t *testVM) judge(reason uint32) error {
	if reason != exitMMIO {
		return t.judgeExit(reason)
	}
	at, sum := t.word64(offExitData), t.word64(offExitData+8)
	n := uint64(t.turns)
	switch {
	case at != resultAt:
		return fmt.Errorf("the test guest made an unexpected access to address %#x", at)
	case sum != n*(n+1)/2:
		return fmt.Errorf("the test guest got a wrong result (%d, not %d)", sum, n*(n+1)/2)
	default:
		return nil
	}
}

func (t *testVM) judgeStopped() error {
	return errors.New("kernel code runs far too slowly or not at all; it is probably emulated rather than run by the " +
		"processor")
}
