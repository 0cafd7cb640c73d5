// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLibraryPackagesAreFoundInADependsField(t *testing.T) {
	for depends, want := range map[string][]string{
		"": nil,
		"libc6 (>= 2.34), libglib2.0-0 (>= 2.66), libudev1, init-system-helpers": {"libc6", "libglib2.0-0", "libudev1"},
		"libglib2.0-0t64 | libglib2.0-0, python3:any, zlib1g (>= 1:1.2)":         {"libglib2.0-0t64", "zlib1g"},
		"libfoo1:any, adduser | libbar":                                          {"libfoo1"},
	} {
		if d := cmp.Diff(want, libraryPackages(depends)); d != "" {
			t.Errorf("%q (-want +got):\n%s", depends, d)
		}
	}
}
