// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
)

// ignitionEchoLimit is the largest payload, in bytes, that is printed whole: a serial console is slow.
const ignitionEchoLimit = 4 << 10

// ignitionSource says where the payload came from; the names are part of the marker.
type ignitionSource string

const (
	sourceFwCfg  ignitionSource = "fw_cfg"
	sourceSMBIOS ignitionSource = "smbios"
	sourceDisk   ignitionSource = "disk"
	sourceNone   ignitionSource = "none"
)

// findIgnition looks below sysRoot (normally /sys) for a payload given by the firmware, then asks fromDisk, which
// may be nil. The first source that has one wins.
func findIgnition(sysRoot string, fromDisk func() ([]byte, bool)) (ignitionSource, []byte) {
	fwCfg := filepath.Join(sysRoot, "firmware/qemu_fw_cfg/by_name/opt/com.coreos/config/raw")
	if payload, err := os.ReadFile(fwCfg); err == nil {
		return sourceFwCfg, payload
	}
	if table, err := os.ReadFile(filepath.Join(sysRoot, "firmware/dmi/tables/DMI")); err == nil {
		if payload, ok := ignitionFromDMI(table); ok {
			return sourceSMBIOS, payload
		}
	}
	if fromDisk != nil {
		if payload, ok := fromDisk(); ok {
			return sourceDisk, payload
		}
	}
	return sourceNone, nil
}

// ignitionMarkers are the console lines that describe a payload.
func ignitionMarkers(source ignitionSource, payload []byte) []string {
	lines := []string{fmt.Sprintf("guest: ignition source=%s bytes=%d sha256=%x", source, len(payload), sha256.Sum256(payload))}
	if len(payload) > 0 && len(payload) <= ignitionEchoLimit {
		lines = append(lines, "guest: ignition-data "+base64.StdEncoding.EncodeToString(payload))
	}
	return lines
}
