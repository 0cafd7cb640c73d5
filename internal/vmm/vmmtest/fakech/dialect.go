// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"fmt"
	"strconv"
	"strings"
)

// dialect is the generation of the API; constants are the major version.
type dialect int

const (
	dialect52 dialect = 52 // 500 for every failure, nulls in vm.info, old SMBIOS names
	dialect53 dialect = 53 // 404 for a VM that is not created, unset fields left out
	dialect54 dialect = 54 // 400, 404 and 409; larger bodies; remove-device idempotent again
)

// parseVersion accepts "", "52", "v53", "v53.0", "53.0.0" and "main" (54). Empty means v53.
func parseVersion(s string) (dialect, error) {
	switch s {
	case "":
		return dialect53, nil
	case "main":
		return dialect54, nil
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(s, "v"), ".")
	n, err := strconv.Atoi(major)
	if err != nil || n < int(dialect52) || n > int(dialect54) {
		return 0, fmt.Errorf("version %q is none of v52, v53 and main", s)
	}
	return dialect(n), nil
}

// build is the string of --version and of build_version in vmm.ping.
func (d dialect) build() string { return fmt.Sprintf("v%d.0", int(d)) }

// semver is the version of vmm.ping.
func (d dialect) semver() string { return fmt.Sprintf("%d.0.0", int(d)) }

// bodyLimit is the largest request body in bytes.
func (d dialect) bodyLimit() int {
	if d >= dialect54 {
		return 4 << 20
	}
	return 51200
}
