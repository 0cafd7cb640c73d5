// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package nested

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestTheConsoleIsFollowedUntilTheCommandsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		console string
		typed   string
		status  int
		over    bool
	}{
		"it passes":              {"noise\r\nguest: ready login:\r\nsh /nested/run\r\nPASS\r\nnested: ended with 0\r\nmore\r\n", "sh /nested/run\n", 0, true},
		"it fails":               {"guest: ready login:\r\nFAIL\r\nnested: ended with 3\r\n", "sh /nested/run\n", 3, true},
		"the machine dies":       {"guest: ready login:\r\nPASS\r\n", "sh /nested/run\n", 0, false},
		"the machine never came": {"Booting from ROM..", "", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			var keyboard bytes.Buffer
			alive := 0
			o := Options{Line: func(string) {}}
			status, over := o.follow(strings.NewReader(c.console), &keyboard, func() { alive++ })
			if status != c.status || over != c.over || keyboard.String() != c.typed {
				t.Errorf("status %d, over %v, typed %q", status, over, keyboard.String())
			}
			if alive == 0 {
				t.Error("nobody was told that the machine lives")
			}
		})
	}
}

func TestLibrariesAreFoundWithTheirLoaderAndStaticProgramsNeedNone(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: programs of this system are not in ELF")
	}
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	found, err := Libraries(sh)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range found {
		if _, err := os.Stat(l); err != nil {
			t.Error(err)
		}
	}
	if all := strings.Join(found, " "); len(found) > 0 && !strings.Contains(all, "ld-") {
		t.Errorf("no loader among %s", all)
	}
	if _, err := Libraries(os.Args[0] + ".absent"); err == nil {
		t.Error("a program that is not there has libraries")
	}
}
