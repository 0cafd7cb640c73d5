// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"regexp"
	"strconv"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

const (
	// MinVersion is the first with --no-shutdown, and has the fix of CVE-2026-45782.
	MinVersion = 52
	// PreferredVersion is the first that keeps the console's output while nobody is connected.
	PreferredVersion = 53
	// versionSystemUUID renamed the platform's "uuid".
	versionSystemUUID = 53
	// versionOneRemoval alone refuses a second removal of a device that its guest has not let go of; the others ask
	// the guest once more.
	versionOneRemoval = 53
)

var versionForm = regexp.MustCompile(`^(?:cloud-hypervisor )?v?(\d{1,4})\.\d+`)

// ParseVersion returns the major version of what vmm.ping or --version says: "53.0.0", "cloud-hypervisor v53.0",
// "cloud-hypervisor v53.0-12-gabcdef". Anything else is machine.Invalid.
func ParseVersion(text string) (major int, err error) {
	m := versionForm.FindStringSubmatch(text)
	if m == nil {
		return 0, machine.Errorf(machine.Invalid, "%.60q is no version of Cloud Hypervisor", text)
	}
	return strconv.Atoi(m[1])
}

// CheckVersion returns machine.FailedPrecondition for a version below the floor.
func CheckVersion(text string) error {
	major, err := ParseVersion(text)
	if err != nil {
		return err
	}
	if major < MinVersion {
		return machine.Errorf(machine.FailedPrecondition,
			"Cloud Hypervisor %d is too old: version %d or later is needed, since older ones end with their guest (no --no-shutdown)",
			major, MinVersion)
	}
	return nil
}
