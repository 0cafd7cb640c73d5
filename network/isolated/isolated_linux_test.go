// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package isolated_test

import (
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network/networktest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
)

func TestItConformsOnTheKernelsTaps(t *testing.T) {
	if !networktest.InNamespace(t) {
		return
	}
	s := setup(tap.Kernel{})
	s.Occupy = networktest.OccupyTap
	networktest.Conformance(t, s)
}
