// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/sha1"
	"crypto/sha256"
	"fmt"
	"regexp"
)

// MaxNameLength is the longest name of a volume or network interface, that of a DNS label.
const MaxNameLength = 63

var nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// ValidateName checks the name of a volume or network interface: it becomes part of paths and device identifiers,
// so it holds lower-case letters, digits, "-" and "." alone and neither begins nor ends with the last two.
func ValidateName(field, name string) error {
	switch {
	case name == "":
		return InvalidField(field, "must not be empty")
	case len(name) > MaxNameLength:
		return InvalidField(field, "is %d characters long, at most %d are allowed", len(name), MaxNameLength)
	case !nameForm.MatchString(name):
		return InvalidField(field, "%q must consist of lower-case letters, digits, '-' and '.', and begin and end with a letter or digit", name)
	}
	return nil
}

// MAC returns the address of a network interface: locally administered, unicast and always the same for the same
// machine and name, so that a guest keeps its leases and names over every restart.
func MAC(machineID, nic string) string {
	h := sha256.Sum256([]byte("mac\x00" + machineID + "\x00" + nic))
	h[0] = h[0]&^1 | 2
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", h[0], h[1], h[2], h[3], h[4], h[5])
}

// Serial returns the serial number under which a guest finds a disk: "<device>-<16 hex digits>", at most the 20
// bytes that virtio-blk carries. The digits are libvirt-provider's world wide name of the disk: the first 8 bytes
// of SHA-1("<machine>:<volume>") with the top bit set.
func Serial(machineID, volume, device string) string {
	h := sha1.Sum([]byte(machineID + ":" + volume))
	h[0] |= 0x80
	wwn := fmt.Sprintf("%016X", h[:8])
	if device == "" {
		return wwn
	}
	if len(device) > 3 {
		device = device[:3]
	}
	return device + "-" + wwn
}
