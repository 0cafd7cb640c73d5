// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

func TestLimitsAreReadFromAttributes(t *testing.T) {
	for name, tc := range map[string]struct {
		in   map[string]string
		want volume.Limits
		bad  string
	}{
		"none":            {in: map[string]string{"image": "a/b"}},
		"both units":      {in: map[string]string{"total_bytes_sec": "1048576", "read_iops_sec": "100", "write_iops_sec": "50"}, want: volume.Limits{TotalBytes: 1 << 20, ReadOps: 100, WriteOps: 50}},
		"a total twice":   {in: map[string]string{"total_iops_sec": "10", "read_iops_sec": "5"}, bad: "a[total_iops_sec]"},
		"zero":            {in: map[string]string{"total_iops_sec": "0"}, bad: "a[total_iops_sec]"},
		"negative":        {in: map[string]string{"read_bytes_sec": "-1"}, bad: "a[read_bytes_sec]"},
		"with a unit":     {in: map[string]string{"write_bytes_sec": "1Mi"}, bad: "a[write_bytes_sec]"},
		"beyond a number": {in: map[string]string{"total_bytes_sec": "99999999999999999999"}, bad: "a[total_bytes_sec]"},
	} {
		got, err := volume.ParseLimits("a", tc.in)
		if tc.bad != "" {
			if !machine.IsKind(err, machine.Invalid) || !strings.Contains(err.Error(), tc.bad) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}
