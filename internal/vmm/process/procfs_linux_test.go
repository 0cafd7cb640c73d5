// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package process

import "testing"

func TestStatIsReadBehindTheCommandName(t *testing.T) {
	tail := " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21"
	for name, c := range map[string]struct {
		raw   string
		start uint64
		over  bool
		bad   bool
	}{
		"plain":                        {raw: "7 (qemu)" + tail, start: 4711},
		"name with blanks and closing": {raw: "7 (a) Z 1 (b)" + tail, start: 4711},
		"zombie":                       {raw: "7 (x) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 9 0", start: 9, over: true},
		"cut short":                    {raw: "7 (x) S 1 2", bad: true},
		"empty":                        {raw: "", bad: true},
	} {
		st, err := parseStat([]byte(c.raw))
		if (err != nil) != c.bad || st.start != c.start || (!c.bad && st.over() != c.over) {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
	}
}

func TestUnitIsReadFromTheCgroupPath(t *testing.T) {
	for cgroup, want := range map[string]string{
		"0::/system.slice/chp-vmm-1.service\n":                                  "chp-vmm-1.service",
		"9:memory:/a.service\n1:name=systemd:/system.slice/chp-vmm-2.service\n": "chp-vmm-2.service",
		"0::/user.slice/user-0.slice/session-1.scope\n":                         "",
		"0::/\n": "",
		"":       "",
		"12:cpu:/x\n0::/vmm.slice/vmm-prod.slice/chp-vmm-0a1b-22.service\n":      "chp-vmm-0a1b-22.service",
		"garbage\n0::/system.slice/chp-vmm-3.service\n":                          "chp-vmm-3.service",
		"0::/system.slice/cloud-hypervisor-provider.service/chp-vmm-4.service\n": "chp-vmm-4.service",
	} {
		if got := unitOf(cgroup); got != want {
			t.Errorf("unit of %q: %q, want %q", cgroup, got, want)
		}
	}
}
