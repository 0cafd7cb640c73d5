// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// TestAFullDiskCostsAGuestNoneOfItsGrace keeps the deadline from being recorded.
func TestAFullDiskCostsAGuestNoneOfItsGrace(t *testing.T) {
	for _, obeys := range []bool{true, false} {
		h := newHost()
		h.obeys = obeys
		d := newDaemon(t, h)
		const grace = 400 * time.Millisecond
		d.tweak = func(o *Options) {
			o.PowerOffGrace, o.ButtonInterval = grace, 50*time.Millisecond
			o.Store = &fullStore{Store: d.store, refuses: func(_, after *machine.Record) bool { return after.Shutdown != nil }}
		}
		d.start(nil)
		d.create(one)
		d.running(one)
		begin := time.Now()
		d.want(one, func(want *machine.Desired) { want.Power = machine.PowerOff })
		d.until("off", one, func(m *machine.Machine) bool { return m.Record.State == machine.Suspended && m.Record.VMM == nil })
		if took := time.Since(begin); !obeys && took < grace {
			t.Errorf("the power was cut after %s", took)
		}
		h.mu.Lock()
		presses := h.presses
		h.mu.Unlock()
		if presses == 0 || (!obeys && presses < 2) {
			t.Errorf("obeys %t: %d presses", obeys, presses)
		}
		d.stop()
	}
}
