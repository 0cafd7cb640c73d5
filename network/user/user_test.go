// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package user

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/networktest"
)

func TestAnInterfaceIsReadyAtOnceWithItsForwards(t *testing.T) {
	forwards := []network.Forward{{HostAddress: "127.0.0.1", HostPort: 2222, GuestPort: 22}}
	p, err := New(Options{Supported: true, Forwards: forwards})
	if err != nil {
		t.Fatal(err)
	}
	req := network.Request{MachineID: "m", Interface: network.Interface{Name: "n"}, MAC: "02:00:00:00:00:01"}
	got, err := p.Apply(t.Context(), req)
	want := network.Result{
		State: network.StateReady, Handle: "user://m/n", MAC: "02:00:00:00:00:01", Backend: network.BackendUser, Forwards: forwards,
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	again, _ := p.Apply(t.Context(), req)
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("asked again: %s", diff)
	}
	if _, err := p.Delete(t.Context(), req.Ref()); err != nil {
		t.Error(err)
	}
}

func TestAHypervisorWithoutUserNetworkIsRefusedAtStart(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("accepted")
	}
}

func TestItConforms(t *testing.T) {
	networktest.Conformance(t, networktest.Setup{
		New: func(t *testing.T) network.Plugin {
			p, err := New(Options{Supported: true})
			if err != nil {
				t.Fatal(err)
			}
			return p
		},
		Same:      &network.Interface{NetworkID: "any", IPs: []string{"10.0.0.1"}},
		Traceless: true,
	})
}
