// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWhatGuestsSayDoesNotGrowTheNumberOfSeries(t *testing.T) {
	counts := map[string]int{"debian 12": 5, "ubuntu 24.04": 3}
	for i := range 100 {
		counts[fmt.Sprintf("nonsense %03d", i)] = 1
	}
	got := commonest(counts, 3)
	want := map[string]int{"debian 12": 5, "ubuntu 24.04": 3, "nonsense 000": 1, "other": 99}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
