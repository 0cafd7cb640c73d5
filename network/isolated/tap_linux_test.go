// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package isolated

import (
	"path/filepath"
	"testing"
)

func TestWithoutADeviceThereIsNothingToRemove(t *testing.T) {
	h := &HostTaps{sys: filepath.Join(t.TempDir(), "net"), proc: t.TempDir()}
	if err := h.Remove(t.Context(), TapName("m", "n"), "owner"); err != nil {
		t.Error(err)
	}
}
