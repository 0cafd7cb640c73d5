// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// sectorSize is the unit of /sys/block/*/size, whatever the disk's own block size is.
const sectorSize = 512

type disk struct {
	name   string
	serial string
	bytes  int64
}

func (d disk) fields() string { return fmt.Sprintf("%s serial=%s bytes=%d", d.name, d.serial, d.bytes) }

type nic struct {
	name string
	mac  string
}

func (n nic) fields() string { return fmt.Sprintf("%s mac=%s", n.name, n.mac) }

// hardware is what the guest saw at one moment; both lists are sorted by name.
type hardware struct {
	disks []disk
	nics  []nic
}

// scanHardware reads disks and network interfaces from below sysRoot (normally /sys). Devices that vanish during the
// scan are left out.
func scanHardware(sysRoot string) hardware {
	return hardware{disks: scanDisks(sysRoot), nics: scanNICs(sysRoot)}
}

func scanDisks(sysRoot string) []disk {
	var disks []disk
	for _, name := range names(filepath.Join(sysRoot, "block")) {
		if hasAnyPrefix(name, "loop", "ram", "zram", "sr", "fd") {
			continue
		}
		dir := filepath.Join(sysRoot, "block", name)
		sectors, err := strconv.ParseInt(readTrimmed(filepath.Join(dir, "size")), 10, 64)
		if err != nil || sectors == 0 { // one that is being removed has no size any more
			continue
		}
		disks = append(disks, disk{name: name, serial: diskSerial(dir), bytes: sectors * sectorSize})
	}
	return disks
}

// diskSerial returns the serial number, or "-" when the disk has none, so that the marker always has three fields.
func diskSerial(dir string) string {
	for _, file := range []string{"serial", "device/serial"} {
		if s := readTrimmed(filepath.Join(dir, file)); s != "" {
			return s
		}
	}
	// SCSI page 0x80: four bytes of header, then the serial.
	if page, err := os.ReadFile(filepath.Join(dir, "device/vpd_pg80")); err == nil && len(page) > 4 {
		if s := strings.TrimSpace(string(page[4:])); s != "" {
			return s
		}
	}
	return "-"
}

func scanNICs(sysRoot string) []nic {
	var nics []nic
	for _, name := range names(filepath.Join(sysRoot, "class/net")) {
		if name == "lo" {
			continue
		}
		if mac := readTrimmed(filepath.Join(sysRoot, "class/net", name, "address")); mac != "" {
			nics = append(nics, nic{name: name, mac: mac})
		}
	}
	return nics
}

// changeMarkers are the console lines for what differs between two scans.
func changeMarkers(before, after hardware) []string {
	var lines []string
	byDisk := func(a, b disk) int { return cmp.Compare(a.name, b.name) }
	byNIC := func(a, b nic) int { return cmp.Compare(a.name, b.name) }
	for _, d := range before.disks {
		if _, ok := slices.BinarySearchFunc(after.disks, d, byDisk); !ok {
			lines = append(lines, "guest: disk- "+d.name)
		}
	}
	for _, d := range after.disks {
		i, ok := slices.BinarySearchFunc(before.disks, d, byDisk)
		switch {
		case !ok:
			lines = append(lines, "guest: disk+ "+d.fields())
		case before.disks[i].serial != d.serial:
			lines = append(lines, "guest: disk- "+d.name, "guest: disk+ "+d.fields())
		case before.disks[i].bytes != d.bytes:
			lines = append(lines, fmt.Sprintf("guest: resize %s bytes=%d", d.name, d.bytes))
		}
	}
	for _, n := range before.nics {
		if i, ok := slices.BinarySearchFunc(after.nics, n, byNIC); !ok || after.nics[i] != n {
			lines = append(lines, "guest: net- "+n.name)
		}
	}
	for _, n := range newNICs(before, after) {
		lines = append(lines, "guest: net+ "+n.fields())
	}
	return lines
}

// newNICs are the interfaces of after that before had not, a changed hardware address counting as another interface.
func newNICs(before, after hardware) []nic {
	var out []nic
	for _, n := range after.nics {
		if !slices.Contains(before.nics, n) {
			out = append(out, n)
		}
	}
	return out
}

func names(dir string) []string {
	// ReadDir sorts by name.
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func readTrimmed(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}
