// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// TestAnInterfaceThatItsNetworkHasMadeAnewIsPluggedAnew has somebody else remove what a running guest is connected to.
func TestAnInterfaceThatItsNetworkHasMadeAnewIsPluggedAnew(t *testing.T) {
	h, d := running(t, nil)
	ref := network.Ref{MachineID: one, Name: "primary"}
	d.attached(one)
	detaches := func() int { return h.read(func() int { return h.asked["detach"] }) }
	for i, object := range []network.Result{
		{Tap: "tap-1", Backend: network.BackendTap, Handle: "uid-1"},
		{Tap: "tap-2", Backend: network.BackendTap, Handle: "uid-2"},
		{Tap: "tap-2", Backend: network.BackendTap, Handle: "uid-3"}, // of the same name, and yet another
		{PCI: "0000:3b:02.1", Backend: network.BackendPCI, Handle: "uid-3"},
	} {
		object.State, object.MAC = network.StateReady, "mac of "
		h.wire(ref, object)
		m := d.until("plugged anew", one, func(m *machine.Machine) bool { return detaches() == i+1 && d.asWanted(m) })
		if rec := m.Record.NICs["primary"]; rec.Replug || rec.Handle != object.Handle {
			t.Errorf("record %+v", rec)
		}
		h.with(t, one, func(g *guest) {
			if n := g.cfg.NICs[g.nic("nic-primary")]; n.Tap != object.Tap || n.PCI != object.PCI {
				t.Errorf("the guest has %+v, not %+v", n, object)
			}
			if !h.nics[ref.String()] {
				t.Error("what was made anew was removed")
			}
		})
		h.wire(ref, object) // nothing new
	}
	if !d.told.has("NetworkInterfaceReplaced") {
		t.Error("no event")
	}
	// Neither a restart nor what an older version did not record is a reason.
	if _, err := d.store.UpdateRecord(t.Context(), one, func(rec *machine.Record) error {
		n := rec.NICs["primary"]
		n.Wired = ""
		rec.NICs["primary"] = n
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	d.stop()
	d.start(nil)
	d.until("recorded again", one, func(m *machine.Machine) bool { return m.Record.NICs["primary"].Wired != "" && d.asWanted(m) })
	if n := detaches(); n != 4 {
		t.Errorf("taken out %d times", n)
	}
	h.wire(ref, network.Result{State: network.StateReady})
	d.attached(one)
	d.finish()
}
