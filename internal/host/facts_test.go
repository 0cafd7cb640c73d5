// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// tree makes a file system from path, content pairs.
func tree(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, content := range files {
		m[name] = &fstest.MapFile{Data: []byte(content), Mode: 0o644}
	}
	return m
}

func x86CPUInfo(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "processor\t: %d\nvendor_id\t: AuthenticAMD\nphysical id\t: 0\nsiblings\t: 4\ncore id\t\t: %d\n"+
			"cpu cores\t: 2\n\n", i, i/2)
	}
	return b.String()
}

// armCPUInfo has neither "cpu cores" nor "siblings" nor "physical id".
func armCPUInfo(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "processor\t: %d\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n"+
			"CPU architecture: 8\nCPU part\t: 0xd0c\n\n", i)
	}
	return b.String()
}

const meminfo = "MemTotal:       24682920 kB\nMemFree:        21000000 kB\nMemAvailable:   23500000 kB\n"

func TestFactsOfAServerWithEverything(t *testing.T) {
	src := Source{
		Arch:  "amd64",
		Uname: func() (Uname, error) { return Uname{Hostname: "node-1", Release: "6.12.0"}, nil },
		FS: tree(map[string]string{
			"proc/cpuinfo":                                               x86CPUInfo(8),
			"proc/meminfo":                                               meminfo,
			"proc/1/comm":                                                "systemd\n",
			"run/systemd/system/x":                                       "",
			"sys/fs/cgroup/cgroup.controllers":                           "cpu memory\n",
			"sys/devices/system/cpu/online":                              "0-3,8-11\n",
			"sys/devices/system/node/online":                             "0-1\n",
			"sys/devices/system/node/node1/cpulist":                      "8-11\n",
			"sys/devices/system/node/node1/meminfo":                      "Node 1 MemTotal:       2048 kB\nNode 1 MemFree: 1 kB\n",
			"sys/devices/system/node/node0/cpulist":                      "0-3\n",
			"sys/devices/system/node/node0/meminfo":                      "Node 0 MemTotal:       1024 kB\n",
			"sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages":   "2\n",
			"sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages": "1\n",
			"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":      "512\n",
			"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages":    "500\n",
		}),
	}
	got, err := ReadFacts(src)
	if err != nil {
		t.Fatal(err)
	}
	want := Facts{
		OS: runtime.GOOS, Arch: "amd64", Hostname: "node-1", KernelRelease: "6.12.0", CPUs: 8,
		MemoryTotal: 24682920 << 10, MemoryAvailable: 23500000 << 10,
		HugePages:     []HugePages{{2 << 20, 512, 500}, {1 << 30, 2, 1}},
		NUMANodes:     []NUMANode{{0, 4, 1 << 20}, {1, 4, 2 << 20}},
		CgroupVersion: 2, Systemd: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}

// A provider that counted "cpu cores" once reported room for no machine at all on servers whose cpuinfo has none.
func TestTheNumberOfCPUsIsNeverZero(t *testing.T) {
	for name, tc := range map[string]struct {
		files    map[string]string
		fallback int
		want     int
	}{
		"x86 cpuinfo counts logical processors":         {map[string]string{"proc/cpuinfo": x86CPUInfo(4)}, 1, 4},
		"arm64 cpuinfo has no cores and still counts":   {map[string]string{"proc/cpuinfo": armCPUInfo(80)}, 1, 80},
		"s390x cpuinfo has the number before the colon": {map[string]string{"proc/cpuinfo": "vendor_id : IBM\nprocessor 0: version = FF\nprocessor 1: version = FF\n"}, 1, 2},
		"the list of online processors goes first":      {map[string]string{"proc/cpuinfo": x86CPUInfo(4), "sys/devices/system/cpu/online": "0-1\n"}, 1, 2},
		"an empty online list is not believed":          {map[string]string{"proc/cpuinfo": x86CPUInfo(4), "sys/devices/system/cpu/online": "\n"}, 1, 4},
		"a broken online list is not believed":          {map[string]string{"proc/cpuinfo": x86CPUInfo(4), "sys/devices/system/cpu/online": "0-x\n"}, 1, 4},
		"cpuinfo without processors falls back":         {map[string]string{"proc/cpuinfo": "model name : x\n"}, 3, 3},
		"nothing at all falls back":                     {nil, 3, 3},
		"even a broken fallback gives one":              {nil, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			src := Source{FS: tree(tc.files), NumCPU: func() int { return tc.fallback }}
			if got := countCPUs(src.withDefaults()); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestCPUCountIsPositiveForAnyCPUInfo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := Source{NumCPU: func() int { return rapid.IntRange(-1, 3).Draw(t, "n") }, FS: tree(map[string]string{
			"proc/cpuinfo":                  rapid.String().Draw(t, "cpuinfo"),
			"sys/devices/system/cpu/online": rapid.StringMatching(`[0-9,-]{0,12}`).Draw(t, "online"),
		})}
		if got := countCPUs(src.withDefaults()); got < 1 {
			t.Fatalf("got %d", got)
		}
	})
}

func TestMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		files            map[string]string
		total, available uint64
		fails            bool
	}{
		"available memory is read":                   {map[string]string{"proc/meminfo": meminfo}, 24682920 << 10, 23500000 << 10, false},
		"an old kernel gives free memory":            {map[string]string{"proc/meminfo": "MemTotal: 8 kB\nMemFree: 4 kB\n"}, 8192, 4096, false},
		"no total is an error":                       {map[string]string{"proc/meminfo": "MemFree: 4 kB\n"}, 0, 0, true},
		"a total of zero is an error":                {map[string]string{"proc/meminfo": "MemTotal: 0 kB\n"}, 0, 0, true},
		"without proc the operating system is asked": {nil, 77, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := ReadFacts(Source{FS: tree(tc.files), Memory: func() (uint64, error) { return 77, nil }})
			if (err != nil) != tc.fails {
				t.Fatalf("error %v, want error: %v", err, tc.fails)
			}
			if f.MemoryTotal != tc.total || f.MemoryAvailable != tc.available {
				t.Errorf("got %d of %d, want %d of %d", f.MemoryAvailable, f.MemoryTotal, tc.available, tc.total)
			}
		})
	}
}

func TestCgroupsAndInit(t *testing.T) {
	for name, tc := range map[string]struct {
		files   map[string]string
		cgroup  int
		systemd bool
	}{
		"unified hierarchy":                   {map[string]string{"sys/fs/cgroup/cgroup.controllers": ""}, 2, false},
		"hybrid counts as version 1":          {map[string]string{"sys/fs/cgroup/unified/cgroup.controllers": "", "sys/fs/cgroup/memory/tasks": ""}, 1, false},
		"none":                                {nil, 0, false},
		"systemd as process 1":                {map[string]string{"run/systemd/system/a": "", "proc/1/comm": "systemd\n"}, 0, true},
		"systemd's directory without systemd": {map[string]string{"run/systemd/system/a": "", "proc/1/comm": "tini\n"}, 0, false},
		"another init":                        {map[string]string{"proc/1/comm": "init\n"}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := tree(tc.files)
			if got := cgroupVersion(fsys); got != tc.cgroup {
				t.Errorf("cgroup version %d, want %d", got, tc.cgroup)
			}
			if got := systemdIsInit(fsys); got != tc.systemd {
				t.Errorf("systemd %v, want %v", got, tc.systemd)
			}
		})
	}
}

func TestUnameFailureIsAnError(t *testing.T) {
	broken := errors.New("broken")
	_, err := ReadFacts(Source{Uname: func() (Uname, error) { return Uname{}, broken }})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestFactsOfThisServer(t *testing.T) {
	f, err := ReadFacts(Source{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", f)
	if f.CPUs < 1 || f.MemoryTotal < 1<<20 || f.Hostname == "" || f.Arch != runtime.GOARCH {
		t.Errorf("implausible: %+v", f)
	}
}
