// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestAnEventFileThatIsReadTakesNoSpace(t *testing.T) {
	f := newFollower(t)
	path := filepath.Join(t.TempDir(), "events")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, stop := follow(t, f, path)
	defer stop()
	writer, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	text := strings.Repeat(event("reboot"), 1000)
	written, seen := 0, 0
	for range 40 {
		n, err := writer.WriteString(text)
		if err != nil {
			t.Fatal(err)
		}
		for written += n; seen < written/len(event("reboot")); {
			b := receive(t, c)
			if b.Lost {
				t.Fatal("events were lost")
			}
			seen += len(b.Events)
		}
	}
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != int64(written) {
		t.Errorf("length is %d, want %d", st.Size, written)
	}
	if used := st.Blocks * 512; used > 1<<20 {
		t.Errorf("%d of %d bytes are still on the file system", used, written)
	}
}
