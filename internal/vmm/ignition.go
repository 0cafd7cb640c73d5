// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"slices"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// Limits of an Ignition payload in bytes, by transport. QEMU reads a fw_cfg file whole and Ignition accepts far
// more; 16 MiB keeps both it and the config disk within reason. The SMBIOS limit is the driver's.
const (
	MaxIgnitionFWCfg = 16 << 20
	MaxIgnitionDisk  = 16 << 20
)

// ChooseIgnition picks the transport for a payload of size bytes: the first of the driver's that carries it when
// want is "auto", else the one that want names. What cannot carry it is Invalid, naming the limit; what the driver
// does not have is Unimplemented.
func ChooseIgnition(c Capabilities, want string, size int) (IgnitionTransport, error) {
	most := 0
	for _, t := range c.Ignition {
		if want != "auto" && want != string(t) {
			continue
		}
		limit := c.ignitionLimit(t)
		if size <= limit {
			return t, nil
		}
		most = max(most, limit)
	}
	if want != "auto" && !slices.Contains(c.Ignition, IgnitionTransport(want)) {
		return "", machine.Errorf(machine.Unimplemented, "Ignition by %s is not possible with this hypervisor", want)
	}
	if len(c.Ignition) == 0 {
		return "", machine.Errorf(machine.Unimplemented, "Ignition is not possible with this hypervisor")
	}
	return "", machine.Errorf(machine.Invalid, "is %d bytes long, at most %d are possible", size, most)
}

func (c Capabilities) ignitionLimit(t IgnitionTransport) int {
	switch t {
	case IgnitionFWCfg:
		return MaxIgnitionFWCfg
	case IgnitionSMBIOS:
		return c.SMBIOSMaxBytes
	case IgnitionDisk:
		return MaxIgnitionDisk
	}
	return 0
}
