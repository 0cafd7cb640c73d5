// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech"
)

func TestDevicesAreCountedWhileTheGuestRuns(t *testing.T) {
	r := newRig(t, fakech.Script{})
	counting, ok := r.vm.(vmm.Counting)
	if !ok {
		t.Fatal("Cloud Hypervisor's connections do not count")
	}
	if all, err := counting.Counters(r.ctx()); err != nil || len(all) > 0 {
		t.Errorf("without a guest: %v, %v", all, err)
	}
	r.boot()
	all, err := counting.Counters(r.ctx())
	r.must("ask for counters", err)
	var got, want []string
	for _, c := range all {
		got = append(got, string(c.Kind)+" "+c.ID)
	}
	for _, d := range r.cfg.Disks {
		want = append(want, "disk "+d.ID)
	}
	for _, n := range r.cfg.NICs {
		want = append(want, "nic "+n.ID)
	}
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("counted devices (-want +got):\n%s", d)
	}
}
