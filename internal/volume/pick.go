// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package volume

import "github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"

// Pick returns the one plugin that supports v. Both none and several are Invalid; the
// caller names the field.
func Pick(plugins []Plugin, v machine.Volume) (Plugin, error) {
	var found Plugin
	for _, p := range plugins {
		if !p.Supports(v) {
			continue
		}
		if found != nil {
			return nil, machine.Errorf(machine.Invalid, "volume %s: plugins %s and %s both claim it", v.Name, found.Name(), p.Name())
		}
		found = p
	}
	if found == nil {
		if v.Connection != nil {
			return nil, machine.Errorf(machine.Invalid, "volume %s: no volume plugin supports %q", v.Name, v.Connection.Driver)
		}
		return nil, machine.Errorf(machine.Invalid, "volume %s: no volume plugin supports it", v.Name)
	}
	return found, nil
}
