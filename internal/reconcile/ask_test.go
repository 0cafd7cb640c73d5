// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"slices"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func TestTheVMMOfARunningMachineCanBeAskedAndOthersCannot(t *testing.T) {
	h := newHost()
	d := newDaemon(t, h)
	d.start(nil)
	if ids := d.r.Connected(); len(ids) > 0 {
		t.Errorf("connected before there is a machine: %v", ids)
	}
	d.create(one)
	d.running(one)
	if ids := d.r.Connected(); !slices.Equal(ids, []string{one}) {
		t.Errorf("connected: %v", ids)
	}
	if err := d.r.Ask(t.Context(), one); err != nil {
		t.Errorf("ask: %v", err)
	}
	if _, err := d.r.Counters(t.Context(), one); !machine.IsKind(err, machine.Unimplemented) {
		t.Errorf("counters of a driver that has none: %v", err)
	}
	for name, err := range map[string]error{"ask": d.r.Ask(t.Context(), two)} {
		if !machine.IsKind(err, machine.Unavailable) {
			t.Errorf("%s of a machine that is not there: %v", name, err)
		}
	}
	if _, err := d.r.Counters(t.Context(), two); !machine.IsKind(err, machine.Unavailable) {
		t.Errorf("counters of a machine that is not there: %v", err)
	}
	d.remove(one)
	d.gone(one)
	if ids := d.r.Connected(); len(ids) > 0 {
		t.Errorf("connected after the deletion: %v", ids)
	}
}
