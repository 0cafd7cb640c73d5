// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"regexp"
	"strings"
)

var versionForm = regexp.MustCompile(`^v[0-9]+$`)

// SameIdentity reports whether an identity that was recorded, maybe by another version of this program, is the one that
// is wanted. What another version wrote says nothing that can be compared: it is taken for the same, since a guest must
// not lose a disk, nor a disk its data, to an upgrade.
func SameIdentity(recorded, wanted string) bool {
	return recorded == wanted || IdentityVersion(recorded) != IdentityVersion(wanted)
}

// IdentityVersion returns the version that an identity begins with, such as "v1"; empty if it has none.
func IdentityVersion(identity string) string {
	if first, _, _ := strings.Cut(identity, " "); versionForm.MatchString(first) {
		return first
	}
	return ""
}
