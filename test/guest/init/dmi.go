// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/base64"
	"strings"
)

const (
	// oemPrefix marks the SMBIOS OEM string (type 11) that holds the Ignition payload in standard base64.
	oemPrefix = "opt/com.coreos/config="

	dmiHeaderLen    = 4
	dmiTypeOEM      = 11
	dmiTypeEndTable = 127
)

// oemStrings returns the OEM strings of a raw SMBIOS structure table (DSP0134: a formatted area whose length is in
// its header, then NUL-terminated strings, then one more NUL). A truncated table yields what was readable.
func oemStrings(table []byte) []string {
	var out []string
	for len(table) >= dmiHeaderLen {
		kind, length := table[0], int(table[1])
		if length < dmiHeaderLen || length > len(table) {
			return out
		}
		strs, rest := dmiStrings(table[length:])
		if kind == dmiTypeOEM {
			out = append(out, strs...)
		}
		if kind == dmiTypeEndTable {
			return out
		}
		table = rest
	}
	return out
}

// dmiStrings splits the string set that follows a formatted area and returns what comes after it. A structure
// without strings still ends in two NULs.
func dmiStrings(b []byte) (strs []string, rest []byte) {
	for {
		end := bytes.IndexByte(b, 0)
		if end < 0 {
			return strs, nil
		}
		if end == 0 {
			b = b[1:]
			if len(strs) == 0 && len(b) > 0 && b[0] == 0 {
				b = b[1:]
			}
			return strs, b
		}
		strs = append(strs, string(b[:end]))
		b = b[end+1:]
	}
}

// ignitionFromDMI finds the Ignition payload among the OEM strings. found is false when no string has the prefix or
// the one that has it is not base64.
func ignitionFromDMI(table []byte) (payload []byte, found bool) {
	for _, s := range oemStrings(table) {
		enc, ok := strings.CutPrefix(s, oemPrefix)
		if !ok {
			continue
		}
		dec, err := base64.StdEncoding.DecodeString(enc)
		if err != nil {
			continue
		}
		return dec, true
	}
	return nil, false
}
