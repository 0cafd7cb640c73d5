// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func TestUsageFollowsEveryChangeAndARestart(t *testing.T) {
	dir := t.TempDir()
	open := func() *Store {
		s, err := Open(t.Context(), Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	for i := range 4 {
		m := &machine.Machine{ID: fmt.Sprint("m", i), Desired: machine.Desired{Resources: machine.Resources{CPUs: 2, MemoryBytes: 10}}}
		if _, err := s.Create(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.UpdateDesired(t.Context(), "m0", 0, func(d *machine.Desired) error { d.Resources.CPUs = 5; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "m3"); err != nil {
		t.Fatal(err)
	}
	want := Usage{Machines: 3, CPUs: 9, MemoryBytes: 30}
	if got := s.Usage(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := s.Usage("m0", "not-there"); got != (Usage{Machines: 2, CPUs: 4, MemoryBytes: 20}) {
		t.Errorf("without m0: %+v", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open()
	defer func() { _ = s.Close() }()
	if got := s.Usage(); got != want {
		t.Errorf("after a restart: %+v, want %+v", got, want)
	}
}
