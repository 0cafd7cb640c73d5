// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

func TestDisksAreCountedAndTheGuestsReadingShows(t *testing.T) {
	cfg := linuxConfig(t)
	r := start(t, newDriver(t), cfg)
	r.must("create", r.vm.Create(r.ctx(), cfg))
	r.must("boot", r.vm.Boot(r.ctx()))
	r.expect("guest: disk vdc")
	counting, ok := r.vm.(vmm.Counting)
	if !ok {
		t.Fatal("QEMU's connections do not count")
	}
	all, err := counting.Counters(r.ctx())
	r.must("ask for counters", err)
	var ids []string
	for _, c := range all {
		ids = append(ids, string(c.Kind)+" "+c.ID)
	}
	if d := cmp.Diff([]string{"disk disk-0", "disk disk-1", "disk disk-2"}, ids); d != "" {
		t.Errorf("counted devices (-want +got):\n%s", d)
	}
	for _, c := range all {
		if c.InBytes == 0 || c.InOps == 0 { // the kernel reads a new disk's partition table
			t.Errorf("%s: %+v", c.ID, c)
		}
	}
}
