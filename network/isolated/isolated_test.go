// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package isolated_test

import (
	"fmt"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/isolated"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/networktest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
)

var request = network.Request{
	MachineID: networktest.MachineA, Interface: network.Interface{Name: "primary"}, MAC: "02:00:00:00:00:01",
}

func setup(host tap.Host) networktest.Setup {
	return networktest.Setup{
		New:  func(*testing.T) network.Plugin { return isolated.New(isolated.Options{Taps: host}) },
		Same: &network.Interface{NetworkID: "any", IPs: []string{"10.0.0.1"}, Attributes: map[string]string{"a": "b"}},
	}
}

func TestItConformsOnImaginaryTaps(t *testing.T) {
	host := &networktest.Taps{}
	s := setup(host)
	s.Occupy = func(_ *testing.T, ref network.Ref) func() error {
		name := tap.Name(ref.MachineID, ref.Name)
		host.Put(tap.Device{Name: name, Owner: "somebody else"})
		before, _ := host.Get(name)
		return func() error {
			if now, _ := host.Get(name); now != before {
				return fmt.Errorf("%+v became %+v", before, now)
			}
			return nil
		}
	}
	networktest.Conformance(t, s)
}

func TestItConformsWhereTheHypervisorDoesAll(t *testing.T) {
	networktest.Conformance(t, networktest.Setup{
		New:       func(*testing.T) network.Plugin { return isolated.New(isolated.Options{}) },
		Traceless: true,
	})
}

func TestATapOfAnotherHypervisorIsRemovedToo(t *testing.T) {
	host := &networktest.Taps{}
	if _, err := isolated.New(isolated.Options{Taps: host}).Apply(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	p := isolated.New(isolated.Options{Taps: host, Native: true})
	if result, err := p.Apply(t.Context(), request); err != nil || result.Backend != network.BackendIsolated {
		t.Errorf("Apply = %+v, %v", result, err)
	}
	if _, err := p.Delete(t.Context(), request.Ref()); err != nil {
		t.Errorf("Delete = %v", err)
	}
	if devices, _ := host.List(t.Context()); len(devices) != 0 {
		t.Errorf("left behind: %v", devices)
	}
}

func TestAHostWithoutRoomIsAFailureOfTheInterface(t *testing.T) {
	host := &networktest.Taps{Fail: func(string, string) error { return fmt.Errorf("%w: 1024 exist", tap.ErrLimit) }}
	got, err := isolated.New(isolated.Options{Taps: host}).Apply(t.Context(), request)
	if err != nil || got.State != network.StateFailed || got.Reason != "DeviceLimit" || got.Message == "" {
		t.Errorf("Apply = %+v, %v", got, err)
	}
}
