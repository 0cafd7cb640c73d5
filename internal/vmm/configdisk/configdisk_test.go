// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package configdisk_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/configdisk"
)

// contents is what a reader that knows the FAT specification alone finds on a disk.
type contents struct {
	label, name string
	data        []byte
	sectors     int
}

func read(image []byte) (contents, error) {
	le := binary.LittleEndian
	var c contents
	switch {
	case len(image) < 512 || image[510] != 0x55 || image[511] != 0xaa:
		return c, errors.New("no boot signature")
	case le.Uint16(image[11:]) != 512 || image[13] != 1:
		return c, errors.New("unexpected sector or cluster size")
	case strings.TrimRight(string(image[43:54]), " ") != configdisk.Label:
		return c, errors.New("no label in the boot sector")
	}
	c.sectors = int(le.Uint16(image[19:]))
	if c.sectors == 0 {
		c.sectors = int(le.Uint32(image[32:]))
	}
	fatStart, fatSize := int(le.Uint16(image[14:])), int(le.Uint16(image[22:]))
	rootStart := fatStart + int(image[16])*fatSize
	dataStart := rootStart + int(le.Uint16(image[17:]))*32/512
	clusters := c.sectors - dataStart
	if clusters < 4085 || clusters >= 65525 {
		return c, errors.New("that many clusters are not FAT16")
	}
	if fatSize*512 < (clusters+2)*2 {
		return c, errors.New("the FAT is too short")
	}
	fat := image[fatStart*512 : (fatStart+fatSize)*512]
	if !bytes.Equal(fat, image[(fatStart+fatSize)*512:(fatStart+2*fatSize)*512]) {
		return c, errors.New("the FAT's copies differ")
	}
	root := image[rootStart*512 : dataStart*512]
	for ; root[0] != 0; root = root[32:] {
		switch root[11] {
		case 0x08:
			c.label = strings.TrimRight(string(root[:11]), " ")
		case 0x0f:
			c.name = longName(root)
		default:
			size := int(le.Uint32(root[28:]))
			for n := int(le.Uint16(root[26:])); n != 0 && n < 0xfff8; n = int(le.Uint16(fat[n*2:])) {
				at := (dataStart + n - 2) * 512
				c.data = append(c.data, image[at:at+512]...)
			}
			if len(c.data) < size || len(c.data)-size >= 512 {
				return c, errors.New("the chain has another length than the file")
			}
			c.data = c.data[:size]
		}
	}
	return c, nil
}

func longName(entry []byte) string {
	raw := append(append(append([]byte(nil), entry[1:11]...), entry[14:26]...), entry[28:32]...)
	var name []byte
	for ; len(raw) > 1 && raw[0] != 0; raw = raw[2:] {
		name = append(name, raw[0])
	}
	return string(name)
}

func write(t interface {
	Helper()
	Fatal(...any)
}, dir string, payload []byte,
) (string, []byte) {
	t.Helper()
	path := filepath.Join(dir, "ignition.img")
	if err := configdisk.Write(path, payload); err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, image
}

func check(payload, image []byte) error {
	got, err := read(image)
	switch {
	case err != nil:
		return err
	case got.label != configdisk.Label || got.name != configdisk.FileName:
		return fmt.Errorf("label %q, name %q", got.label, got.name)
	case !bytes.Equal(got.data, payload):
		return fmt.Errorf("%d bytes were written, other ones read", len(payload))
	case got.sectors*512 != len(image):
		return fmt.Errorf("the file system has %d sectors, the file %d bytes", got.sectors, len(image))
	}
	return nil
}

func TestAnyPayloadIsReadBack(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.OneOf(rapid.IntRange(0, 2000), rapid.IntRange(4080*512, 4120*512)).Draw(t, "size")
		seed := rapid.SliceOfN(rapid.Byte(), 1, 100).Draw(t, "seed")
		payload := bytes.Repeat(seed, size/len(seed)+1)[:size]
		_, image := write(t, dir, payload)
		if err := check(payload, image); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTheGreatestPayloadIsReadBack(t *testing.T) {
	payload := bytes.Repeat([]byte("0123456789abcdef"), configdisk.MaxPayload/16)
	_, image := write(t, t.TempDir(), payload)
	if err := check(payload, image); err != nil {
		t.Fatal(err)
	}
}

func TestTheSamePayloadGivesTheSameDisk(t *testing.T) {
	_, a := write(t, t.TempDir(), []byte(`{"ignition":{}}`))
	_, b := write(t, t.TempDir(), []byte(`{"ignition":{}}`))
	_, c := write(t, t.TempDir(), []byte(`{"ignition":[]}`))
	if !bytes.Equal(a, b) {
		t.Error("two disks of one payload differ")
	}
	if bytes.Equal(a[39:43], c[39:43]) {
		t.Error("disks of two payloads have one volume id")
	}
}

func TestADiskIsPrivateAndReplacedAtOnce(t *testing.T) {
	dir := t.TempDir()
	path, _ := write(t, dir, []byte("old"))
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	write(t, dir, []byte("new"))
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v", info.Mode())
	}
	was, err := old.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if os.SameFile(info, was) {
		t.Error("the old disk was written over")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left over: %v", entries)
	}
}

func TestAPayloadThatDoesNotFitLeavesNoTrace(t *testing.T) {
	dir := t.TempDir()
	err := configdisk.Write(filepath.Join(dir, "d"), make([]byte, configdisk.MaxPayload+1))
	if !errors.Is(err, configdisk.ErrTooLarge) {
		t.Errorf("error is %v, want ErrTooLarge", err)
	}
	if err := configdisk.Write(filepath.Join(dir, "none", "d"), nil); err == nil {
		t.Error("a missing directory is no error")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left over: %v", entries)
	}
}

func TestOtherToolsReadADisk(t *testing.T) {
	payload := bytes.Repeat([]byte("ignition "), 1000)
	path, _ := write(t, t.TempDir(), payload)
	for _, tc := range []struct {
		argv []string
		want string
	}{
		{[]string{"fsck.vfat", "-n", "-v", path}, "2 files, 18/4101 clusters"},
		{[]string{"mtype", "-i", path, "::config.ign"}, string(payload)},
		{[]string{"mlabel", "-i", path, "-s", "::"}, "IGNITION"},
		{[]string{"mdir", "-b", "-i", path, "::"}, "::/config.ign"},
		{[]string{"blkid", "-p", "-o", "export", path}, "LABEL=IGNITION"},
		{[]string{"file", path}, "FAT (16 bit)"},
	} {
		t.Run(tc.argv[0], func(t *testing.T) {
			if _, err := exec.LookPath(tc.argv[0]); err != nil {
				t.Skipf("SKIPPED: %s is not installed (Debian packages dosfstools, mtools, file, util-linux)", tc.argv[0])
			}
			out, err := exec.CommandContext(t.Context(), tc.argv[0], tc.argv[1:]...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), tc.want) {
				t.Errorf("%v: %v\n%.2000s", tc.argv, err, out)
			}
		})
	}
}
