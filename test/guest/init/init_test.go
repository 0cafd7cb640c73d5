// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// structure is one SMBIOS structure: header, formatted area, strings.
func structure(kind byte, formatted string, strs ...string) []byte {
	b := append([]byte{kind, byte(4 + len(formatted)), 0, 0}, formatted...)
	for _, s := range strs {
		b = append(append(b, s...), 0)
	}
	if len(strs) == 0 {
		b = append(b, 0)
	}
	return append(b, 0)
}

func TestOEMStringsAreFoundInATable(t *testing.T) {
	bios := structure(0, "\x01\x02rest", "vendor", "version")
	empty := structure(32, "0123456")
	end := structure(127, "")
	for name, c := range map[string]struct {
		table []byte
		want  []string
	}{
		"no table":                      {nil, nil},
		"no OEM structure":              {bytes.Join([][]byte{bios, empty, end}, nil), nil},
		"among others":                  {bytes.Join([][]byte{bios, empty, structure(11, "\x02", "a", "b"), end}, nil), []string{"a", "b"}},
		"in two structures":             {bytes.Join([][]byte{structure(11, "\x01", "a"), structure(11, "\x01", "b"), end}, nil), []string{"a", "b"}},
		"nothing behind the end counts": {bytes.Join([][]byte{end, structure(11, "\x01", "a")}, nil), nil},
		"a table without an end":        {structure(11, "\x01", "a"), []string{"a"}},
		"a table cut inside the string": {structure(11, "\x02", "a", "bcd")[:8], []string{"a"}},
		"a length that is too small":    {[]byte{11, 2, 0, 0, 0, 0}, nil},
		"a length beyond the table":     {[]byte{11, 200, 0, 0, 0, 0}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, oemStrings(c.table)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAnyBytesAsTableEndTheParser(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_ = oemStrings(rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "table"))
	})
}

func writeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestIgnitionComesFromTheFirstSourceThatHasIt(t *testing.T) {
	const fwCfg, dmi = "firmware/qemu_fw_cfg/by_name/opt/com.coreos/config/raw", "firmware/dmi/tables/DMI"
	smbios := string(structure(11, "\x02", "other", oemPrefix+base64.StdEncoding.EncodeToString([]byte("from smbios"))))
	disk := func() ([]byte, bool) { return []byte("from disk"), true }
	for name, c := range map[string]struct {
		files   map[string]string
		disk    func() ([]byte, bool)
		source  ignitionSource
		payload string
	}{
		"fw_cfg before all":              {map[string]string{fwCfg: "from fw_cfg", dmi: smbios}, disk, sourceFwCfg, "from fw_cfg"},
		"SMBIOS before the disk":         {map[string]string{dmi: smbios}, disk, sourceSMBIOS, "from smbios"},
		"the disk last":                  {map[string]string{dmi: string(structure(11, "\x01", "other"))}, disk, sourceDisk, "from disk"},
		"base64 that is none is no find": {map[string]string{dmi: string(structure(11, "\x01", oemPrefix+"%%"))}, nil, sourceNone, ""},
		"no source":                      {nil, func() ([]byte, bool) { return nil, false }, sourceNone, ""},
	} {
		t.Run(name, func(t *testing.T) {
			source, payload := findIgnition(writeTree(t, c.files), c.disk)
			if source != c.source || string(payload) != c.payload {
				t.Errorf("%s %q, want %s %q", source, payload, c.source, c.payload)
			}
		})
	}
}

func TestALargePayloadIsNotPrinted(t *testing.T) {
	small, large := bytes.Repeat([]byte("x"), ignitionEchoLimit), bytes.Repeat([]byte("x"), ignitionEchoLimit+1)
	if got := ignitionMarkers(sourceDisk, small); len(got) != 2 {
		t.Errorf("%d lines", len(got))
	}
	want := []string{fmt.Sprintf("guest: ignition source=disk bytes=4097 sha256=%x", sha256.Sum256(large))}
	if diff := cmp.Diff(want, ignitionMarkers(sourceDisk, large)); diff != "" {
		t.Error(diff)
	}
}

func TestHardwareIsReadFromSysfs(t *testing.T) {
	root := writeTree(t, map[string]string{
		"block/vda/size": "65536\n", "block/vda/serial": "root-1\n",
		"block/sda/size": "8\n", "block/sda/device/vpd_pg80": "\x00\x80\x00\x05scsi1",
		"block/nvme0n1/size": "16\n", "block/nvme0n1/device/serial": "NV1   \n",
		"block/vdb/size": "2\n", "block/loop0/size": "0\n", "block/sr0/size": "0\n",
		"class/net/lo/address": "00:00:00:00:00:00\n", "class/net/eth0/address": "52:54:00:00:00:01\n",
	})
	want := []string{
		"nvme0n1 serial=NV1 bytes=8192", "sda serial=scsi1 bytes=4096", "vda serial=root-1 bytes=33554432", "vdb serial=- bytes=1024",
		"eth0 mac=52:54:00:00:00:01",
	}
	var got []string
	hw := scanHardware(root)
	for _, d := range hw.disks {
		got = append(got, d.fields())
	}
	for _, n := range hw.nics {
		got = append(got, n.fields())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestChangesAreAnnounced(t *testing.T) {
	vda, vdb := disk{"vda", "a", 512}, disk{"vdb", "b", 512}
	eth0, eth1 := nic{"eth0", "01"}, nic{"eth1", "02"}
	for name, c := range map[string]struct {
		before, after hardware
		want          []string
	}{
		"nothing": {hardware{[]disk{vda}, []nic{eth0}}, hardware{[]disk{vda}, []nic{eth0}}, nil},
		"added": {
			hardware{[]disk{vda}, nil},
			hardware{[]disk{vda, vdb}, []nic{eth0}},
			[]string{"guest: disk+ vdb serial=b bytes=512", "guest: net+ eth0 mac=01"},
		},
		"removed": {hardware{[]disk{vda, vdb}, []nic{eth0, eth1}}, hardware{[]disk{vdb}, []nic{eth0}}, []string{"guest: disk- vda", "guest: net- eth1"}},
		"grown":   {hardware{[]disk{vda}, nil}, hardware{[]disk{{"vda", "a", 1024}}, nil}, []string{"guest: resize vda bytes=1024"}},
		"another disk under the same name": {
			hardware{[]disk{vda}, nil},
			hardware{[]disk{{"vda", "z", 512}}, nil},
			[]string{"guest: disk- vda", "guest: disk+ vda serial=z bytes=512"},
		},
		"another interface under the same name": {
			hardware{nil, []nic{eth0}},
			hardware{nil, []nic{{"eth0", "09"}}},
			[]string{"guest: net- eth0", "guest: net+ eth0 mac=09"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, changeMarkers(c.before, c.after)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFileSystemLabelsAreRead(t *testing.T) {
	ext4 := make([]byte, 2048)
	ext4[1024+0x38], ext4[1024+0x39] = 0x53, 0xef
	copy(ext4[1024+0x78:], rootLabel)
	fat := func(at int, kind string) string {
		b := make([]byte, 512)
		copy(b[at:], "IGNITION   "+kind)
		b[510], b[511] = 0x55, 0xaa
		return string(b)
	}
	for name, c := range map[string]struct{ image, ext4, fat string }{
		"ext4":                     {string(ext4), rootLabel, ""},
		"FAT12":                    {fat(0x2b, "FAT12   "), "", configLabel},
		"FAT32":                    {fat(0x47, "FAT32   "), "", configLabel},
		"a boot sector of others":  {fat(0x2b, "NTFS    "), "", ""},
		"an empty disk":            {strings.Repeat("\x00", 4096), "", ""},
		"a disk that is too short": {"x", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := strings.NewReader(c.image)
			if got := ext4Label(r); got != c.ext4 {
				t.Errorf("ext4 label %q, want %q", got, c.ext4)
			}
			if got := fatLabel(r); got != c.fat {
				t.Errorf("FAT label %q, want %q", got, c.fat)
			}
		})
	}
}
