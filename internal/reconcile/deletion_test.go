// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

func TestADeviceThatCannotBeRemovedHoldsNoOtherOfAMachineThatIsDeleted(t *testing.T) {
	ref := network.Ref{MachineID: one, Name: "primary"}
	for name, c := range map[string]struct {
		stick, free func(h *host)
		reason      string
	}{
		"an interface waits": {
			func(h *host) {
				h.wire(ref, network.Result{State: network.StateLeaving, Reason: "Finalizer", Message: "wait"})
			},
			func(h *host) { h.wire(ref, network.Result{State: network.StateReady}) }, "Finalizer",
		},
		"an interface fails": {
			func(h *host) { h.fail("nic.delete", errors.New("the API server is away")) },
			func(h *host) { h.fail("nic.delete", nil) }, "nic.release",
		},
		"a volume fails": {
			func(h *host) { h.fail("volume.delete data", errors.New("the disk is broken")) },
			func(h *host) { h.fail("volume.delete data", nil) }, "volume.delete",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, d := running(t, func(_ *host, d *daemon) { d.tweak = func(o *Options) { o.Resync = 50 * time.Millisecond } })
			d.want(one, add(far("far", "x"), near("data", 1<<20)))
			d.attached(one)
			c.stick(h)
			d.remove(one)
			d.until("all others are gone", one, func(m *machine.Machine) bool {
				return m != nil && len(m.Record.Volumes)+len(m.Record.NICs) == 1 && m.Record.VMM == nil && ready(m).Reason == c.reason
			})
			if left := h.read(func() int { return len(h.held) + len(h.nics) }); left != 1 {
				t.Errorf("%d are held", left)
			}
			c.free(h)
			d.gone(one)
			if left := h.leaks(); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
