// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAnOverlayFollowsTheInitramfsWithItsDirectoriesFirst(t *testing.T) {
	dir := t.TempDir()
	initramfs, program := filepath.Join(dir, "initramfs"), filepath.Join(dir, "program")
	for path, text := range map[string]string{initramfs: "packed", program: "binary"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var o Overlay
	o.File("/opt/bin/../bin/tool", program, 0o755)
	o.Text("opt/note", "hello", 0o644)
	var out bytes.Buffer
	if err := o.Append(&out, initramfs); err != nil {
		t.Fatal(err)
	}
	// An archive may only begin at a multiple of four bytes.
	rest, ok := strings.CutPrefix(out.String(), "packed\x00\x00070701")
	if !ok {
		t.Fatalf("the archive begins with %.20q", out.String())
	}
	last := 0
	for _, want := range []string{"opt\x00", "opt/bin\x00", "opt/bin/tool\x00", "binary", "opt/note\x00", "hello", "TRAILER!!!"} {
		at := strings.Index(rest[last:], want)
		if at < 0 {
			t.Fatalf("%q does not come next in %q", want, rest)
		}
		last += at + len(want)
	}
	if strings.Count(rest, "opt\x00") != 1 {
		t.Error("a directory is made twice")
	}
}

func TestAnOverlayTellsWhichFileItLacks(t *testing.T) {
	initramfs := filepath.Join(t.TempDir(), "initramfs")
	if err := os.WriteFile(initramfs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var o Overlay
	o.File("/lib/absent.so", filepath.Join(t.TempDir(), "absent.so"), 0o644)
	if err := o.Append(&bytes.Buffer{}, initramfs); err == nil || !strings.Contains(err.Error(), "lib/absent.so") {
		t.Errorf("error is %v", err)
	}
}
