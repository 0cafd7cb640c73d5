// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package volume

import "testing"

func TestIdentitiesOfDifferentVersionsAreNotToldApart(t *testing.T) {
	for _, c := range []struct {
		recorded, wanted string
		same             bool
	}{
		{"v1 a b", "v1 a b", true},
		{"v1 a b", "v1 a c", false},
		{"a b", "v1 a c", true},
		{"v2 a b", "v1 a c", true},
		{"v1", "v1 a", false},
		{"", "v1 a", true},
		{"a b", "a c", false},
		{"version a", "volume a", false},
	} {
		if SameIdentity(c.recorded, c.wanted) != c.same {
			t.Errorf("%q and %q: want %t", c.recorded, c.wanted, c.same)
		}
	}
}
