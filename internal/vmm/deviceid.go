// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxDeviceID is the length of a QEMU block node name, the tightest of the drivers' limits, less two for a prefix.
const maxDeviceID = 29

func deviceID(kind, name string) string {
	id := kind + "-" + name
	if len(id) <= maxDeviceID && !strings.Contains(name, ".") {
		return id
	}
	sum := sha256.Sum256([]byte(name))
	tail := "-x" + hex.EncodeToString(sum[:6])
	head := strings.ReplaceAll(id, ".", "_")
	if len(head) > maxDeviceID-len(tail) {
		head = head[:maxDeviceID-len(tail)]
	}
	return head + tail
}
