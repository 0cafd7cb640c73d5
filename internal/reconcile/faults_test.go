// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func TestAVMMThatIsGoneIsReapedThoughItsDriverIsGoneToo(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		h := newHost()
		d := newDaemon(t, h)
		d.start(nil)
		d.create(one)
		d.running(one)
		if deleted {
			d.remove(one)
		}
		d.stop()
		h.world.Reboot()
		d.tweak = func(o *Options) { o.Driver = driver{h: h, name: "other"} }
		d.start(nil)
		if !deleted {
			d.until("started by the other driver", one, func(m *machine.Machine) bool {
				return m.Record.State == machine.Running && m.Record.VMM != nil && m.Record.VMM.Driver == "other"
			})
			d.remove(one)
		}
		d.gone(one)
		if left := h.leaks(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}
