// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package isolated

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// taps is an imaginary host: the owner of each tap by name.
type taps map[string]string

func (t taps) Ensure(_ context.Context, name, owner string) error {
	if other, ok := t[name]; ok && other != owner {
		return ErrNotOwner
	}
	t[name] = owner
	return nil
}

func (t taps) List(context.Context) (map[string]string, error) { return t, nil }

func (t taps) Remove(_ context.Context, name, owner string) error {
	if other, ok := t[name]; ok && other != owner {
		return ErrNotOwner
	}
	delete(t, name)
	return nil
}

var request = network.Request{MachineID: "11111111-1111-4111-8111-111111111111", Interface: network.Interface{Name: "primary"}, MAC: "02:00:00:00:00:01"}

func TestATapIsMadeOnceAndRemoved(t *testing.T) {
	host := taps{}
	p := New(Options{Taps: host})
	first, err := p.Apply(t.Context(), request)
	if err != nil || first.Backend != network.BackendTap || first.Tap == "" || first.Handle == "" || first.State != network.StateReady {
		t.Fatalf("Apply = %+v, %v", first, err)
	}
	if seen, err := p.Observe(t.Context(), request.Ref()); err != nil || seen.State != network.StateReady || seen.Tap != first.Tap {
		t.Errorf("Observe = %+v, %v", seen, err)
	}
	if refs, err := p.List(t.Context()); err != nil || len(refs) != 1 || refs[0] != request.Ref() {
		t.Errorf("List = %v, %v", refs, err)
	}
	again, err := p.Apply(t.Context(), request)
	if err != nil || again.Handle != first.Handle || again.MAC != first.MAC || again.Tap != first.Tap || len(host) != 1 {
		t.Errorf("again = %+v, %v; taps %v", again, err, host)
	}
	for range 2 {
		if _, err := p.Delete(t.Context(), request.Ref()); err != nil || len(host) != 0 {
			t.Errorf("Delete = %v; taps %v", err, host)
		}
	}
}

func TestATapOfAnotherHypervisorIsRemovedToo(t *testing.T) {
	host := taps{}
	if _, err := New(Options{Taps: host}).Apply(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	p := New(Options{Taps: host, Native: true})
	if result, err := p.Apply(t.Context(), request); err != nil || result.Backend != network.BackendIsolated {
		t.Errorf("Apply = %+v, %v", result, err)
	}
	if _, err := p.Delete(t.Context(), request.Ref()); err != nil || len(host) != 0 {
		t.Errorf("Delete = %v; left behind: %v", err, host)
	}
}

func TestATapOfSomebodyElseIsLeftAlone(t *testing.T) {
	host := taps{TapName(request.MachineID, "primary"): "somebody else"}
	before := maps.Clone(host)
	p := New(Options{Taps: host})
	_, applied := p.Apply(t.Context(), request)
	_, deleted := p.Delete(t.Context(), request.Ref())
	for call, err := range map[string]error{"Apply": applied, "Delete": deleted} {
		if !errors.Is(err, ErrNotOwner) {
			t.Errorf("%s = %v", call, err)
		}
	}
	if !maps.Equal(before, host) {
		t.Errorf("taps: %v", host)
	}
}
