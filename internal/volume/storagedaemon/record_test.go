// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package storagedaemon

import (
	"os"
	"path/filepath"
	"testing"
)

func TestARecordThatAKilledProgramWasWritingDoesNotKeepTheDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := saveRecord(dir, record{Marker: "m"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".storage-daemon-123", logName, "of somebody else"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := removeRecord(dir); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "of somebody else" {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := removeRecord(filepath.Join(dir, "missing")); err != nil {
		t.Error(err)
	}
}
