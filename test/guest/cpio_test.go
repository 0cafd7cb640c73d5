// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sampleArchive(t *testing.T) []byte {
	t.Helper()
	var buf bytes.Buffer
	c := &cpioWriter{w: &buf}
	c.dir("dev")
	c.charDevice("dev/console", 0o600, 5, 1)
	c.file("init", 0o755, []byte("hello"))
	c.symlink("sh", "init")
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestArchiveHasTheFormOfNewc(t *testing.T) {
	got := sampleArchive(t)
	const zeros = "00000000"
	header := func(ino, mode, links, size, major, minor, nameSize string) string {
		return "070701" + ino + mode + zeros + zeros + links + zeros + size + zeros + zeros + major + minor + nameSize + zeros
	}
	one := "00000001"
	want := header(one, "000041ED", "00000002", zeros, zeros, zeros, "00000004") + "dev\x00\x00\x00" +
		header("00000002", "00002180", one, zeros, "00000005", one, "0000000C") + "dev/console\x00\x00\x00" +
		header("00000003", "000081ED", one, "00000005", zeros, zeros, "00000005") + "init\x00\x00hello\x00\x00\x00" +
		header("00000004", "0000A1FF", one, "00000004", zeros, zeros, "00000003") + "sh\x00\x00\x00\x00init" +
		header(zeros, zeros, one, zeros, zeros, zeros, "0000000B") + "TRAILER!!!\x00\x00\x00\x00"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

func TestArchiveIsReadByCpio(t *testing.T) {
	cpio, err := exec.LookPath("cpio")
	if err != nil {
		t.Skip("SKIPPED: cpio is not on this host (Debian package cpio): the archive was NOT read by an independent program")
	}
	cmd := exec.Command(cpio, "-t", "--quiet")
	cmd.Stdin = bytes.NewReader(sampleArchive(t))
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Join(strings.Fields(string(out)), " ") != "dev dev/console init sh" {
		t.Errorf("cpio: %v: %s", err, out)
	}
}

func TestInitramfsOfEqualPartsIsEqualAndListsModulesOnce(t *testing.T) {
	shared := moduleFile{name: "crc.ko", data: []byte("crc")}
	parts := initramfsParts{
		init: []byte("init"), busybox: []byte("box"),
		boot: []moduleFile{shared, {name: "blk.ko", data: []byte("blk")}},
		vfat: []moduleFile{shared, {name: "vfat.ko", data: []byte("vfat")}},
	}
	a, err := initramfs(parts)
	if err != nil {
		t.Fatal(err)
	}
	b, err := initramfs(parts)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("two archives of the same parts differ")
	}
	plain, err := expandGzip(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{
		"lib/modules/crc.ko\x00": 1, "lib/modules/vfat.ko\x00": 1,
		"crc.ko\nblk.ko\n": 1, "crc.ko\nvfat.ko\n": 1,
	} {
		if n := bytes.Count(plain, []byte(text)); n != want {
			t.Errorf("%q is %d times in the archive, want %d", text, n, want)
		}
	}
}
