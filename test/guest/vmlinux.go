// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// Offsets in the x86 boot protocol's setup header (Documentation/arch/x86/boot.rst in the kernel tree).
const (
	setupSectsAt    = 0x1f1
	headerMagicAt   = 0x202
	protocolAt      = 0x206
	payloadOffsetAt = 0x248
	payloadLengthAt = 0x24c
	setupHeaderEnd  = 0x250

	payloadProtocol = 0x208 // first version with the payload fields
	sectorBytes     = 512
)

// vmlinuxFromBzImage returns the uncompressed ELF kernel inside a bzImage, for boot over the PVH entry point: the
// guest then does not have to decompress itself, which is slow under emulation.
func vmlinuxFromBzImage(ctx context.Context, image []byte) ([]byte, error) {
	if len(image) < setupHeaderEnd || string(image[headerMagicAt:headerMagicAt+4]) != "HdrS" {
		return nil, errors.New("not a bzImage: no setup header")
	}
	if v := binary.LittleEndian.Uint16(image[protocolAt:]); v < payloadProtocol {
		return nil, fmt.Errorf("bzImage of boot protocol %#x has no payload fields", v)
	}
	sects := int(image[setupSectsAt])
	if sects == 0 {
		sects = 4 // the protocol's meaning of 0
	}
	start := (sects+1)*sectorBytes + int(binary.LittleEndian.Uint32(image[payloadOffsetAt:]))
	length := int(binary.LittleEndian.Uint32(image[payloadLengthAt:]))
	const sizeLen = 4
	if start > len(image) || length > len(image)-start || length < sizeLen {
		return nil, errors.New("bzImage is cut short")
	}
	payload := image[start : start+length]
	kernel, known, err := expand(ctx, payload)
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, fmt.Errorf("bzImage payload has an unknown compression, it starts with % x", payload[:sizeLen])
	}
	if want := binary.LittleEndian.Uint32(payload[length-sizeLen:]); int(want) != len(kernel) {
		return nil, fmt.Errorf("kernel expands to %d bytes, its header says %d", len(kernel), want)
	}
	if !bytes.HasPrefix(kernel, []byte("\x7fELF")) {
		return nil, errors.New("bzImage payload is no ELF file")
	}
	return kernel, nil
}
