// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package class_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
)

const gib = int64(1) << 30

func TestClassFilesAreRead(t *testing.T) {
	small := class.Class{Name: "small", Resources: map[string]int64{"cpu": 2, "memory": 4 * gib}}
	for name, c := range map[string]struct {
		data string
		want []class.Class
	}{
		"a YAML list as libvirt-provider ships it": {
			"- apiVersion: compute.ironcore.dev/v1alpha1\n  kind: MachineClass\n  metadata:\n    name: small\n  capabilities:\n    cpu: 2\n    memory: 4Gi\n",
			[]class.Class{small},
		},
		"a JSON list indented with tabs": {
			"[\n\t{\n\t\t\"metadata\": {\"name\": \"small\"},\n\t\t\"capabilities\": {\"cpu\": 2, \"memory\": \"4Gi\"}\n\t}\n]\n",
			[]class.Class{small},
		},
		"other metadata, spec and status are let through": {
			"- metadata: {name: small, labels: {a: b}, uid: x, creationTimestamp: null}\n  spec: {}\n  status: {}\n  capabilities: {cpu: \"2\", memory: 4Gi}\n",
			[]class.Class{small},
		},
		"fractions are rounded up": {
			"- metadata: {name: tiny}\n  capabilities: {cpu: 500m, memory: 1.5, nvidia.com/gpu: 0.1}\n",
			[]class.Class{{Name: "tiny", Resources: map[string]int64{"cpu": 1, "memory": 2, "nvidia.com/gpu": 1}}},
		},
		"an empty list is no class": {"[]\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, report := class.Parse([]byte(c.data), "classes.yaml")
			if len(report.Problems) > 0 {
				t.Fatalf("problems: %v", report.Problems)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestBadClassFilesAreReportedWithTheirLine(t *testing.T) {
	const caps = "  capabilities: {cpu: 1, memory: 1Gi}\n"
	for name, c := range map[string]struct{ data, want string }{
		"nothing":                     {"", "c.yaml: error: the document is empty"},
		"a mapping instead of a list": {"metadata: {name: a}\n", `c.yaml:1:1: error: want a list of MachineClass objects, found a mapping; start each class with "- "`},
		"an item that is no object":   {"- small\n", `c.yaml:1:3: error: [0]: want a MachineClass object, found the string "small"`},
		"no name":                     {"- metadata: {}\n" + caps, "c.yaml:1:13: error: [0].metadata.name: the class has no name"},
		"no metadata":                 {"- kind: MachineClass\n" + caps, "c.yaml:1:3: error: [0].metadata: the class has no metadata.name"},
		"an empty name":               {"- metadata: {name: \"\"}\n" + caps, "c.yaml:1:20: error: [0].metadata.name: the name is empty"},
		"a number as name":            {"- metadata: {name: 5}\n" + caps, "c.yaml:1:20: error: [0].metadata.name: want a string, found the integer 5"},
		"a name with blanks around":   {"- metadata: {name: \" a\"}\n" + caps, `c.yaml:1:20: error: [0].metadata.name: the name " a" has blanks around it`},
		"a name defined twice": {
			"- metadata: {name: a}\n" + caps + "- metadata: {name: a}\n" + caps,
			`c.yaml:3:20: error: [1].metadata.name: class "a" is defined twice, first at line 1`,
		},
		"no capabilities": {"- metadata: {name: a}\n", "c.yaml:1:3: error: [0].capabilities: the class has no capabilities, but needs at least cpu and memory"},
		"capabilities misspelt": {
			"- metadata: {name: a}\n  capabilties: {cpu: 1, memory: 1Gi}\n",
			"c.yaml:2:3: warning: [0].capabilties: the key is not read; did you mean capabilities?\n" +
				"c.yaml:1:3: error: [0].capabilities: the class has no capabilities, but needs at least cpu and memory",
		},
		"no memory":          {"- metadata: {name: a}\n  capabilities: {cpu: 1, memroy: 1Gi}\n", "c.yaml:2:17: error: [0].capabilities.memory: the class has no memory; is memroy a typo?"},
		"no cpu":             {"- metadata: {name: a}\n  capabilities: {memory: 1Gi}\n", "c.yaml:2:17: error: [0].capabilities.cpu: the class has no cpu"},
		"zero cpu":           {"- metadata: {name: a}\n  capabilities: {cpu: 0, memory: 1Gi}\n", "c.yaml:2:23: error: [0].capabilities.cpu: 0 is not above zero"},
		"a negative extra":   {"- metadata: {name: a}\n  capabilities: {cpu: 1, memory: 1Gi, x/y: -1}\n", "c.yaml:2:44: error: [0].capabilities.x/y: -1 is not above zero"},
		"a unit with B":      {"- metadata: {name: a}\n  capabilities: {cpu: 1, memory: 1GB}\n", `c.yaml:2:34: error: [0].capabilities.memory: "1GB" is not a quantity such as 4, 500m or 512Mi; write 1Gi (powers of 1024) or 1G (powers of 1000)`},
		"too much memory":    {"- metadata: {name: a}\n  capabilities: {cpu: 1, memory: 9e30}\n", `c.yaml:2:34: error: [0].capabilities.memory: "9e30" does not fit 64 bits`},
		"a huge exponent":    {"- metadata: {name: a}\n  capabilities: {cpu: 1, memory: 1e999999999}\n", `c.yaml:2:34: error: [0].capabilities.memory: "1e999999999" is not a quantity such as 4, 500m or 512Mi`},
		"a list as quantity": {"- metadata: {name: a}\n  capabilities: {cpu: [1], memory: 1Gi}\n", "c.yaml:2:23: error: [0].capabilities.cpu: want a quantity such as 4 or 8Gi, found a list"},
		"another kind":       {"- kind: VolumeClass\n  metadata: {name: a}\n" + caps, `c.yaml:1:9: error: [0].kind: found the string "VolumeClass"; write MachineClass`},
		"equal maps": {
			"- metadata: {name: a}\n" + caps + "- metadata: {name: b}\n" + caps,
			`c.yaml:3:20: warning: classes "a" and "b" have the same capabilities, so a pool can tell them apart only by name`,
		},
		"a key twice":    {"- metadata: {name: a}\n" + caps + caps, "c.yaml:3:3: error: [0].capabilities: the key stands twice, first at line 2"},
		"an open brace":  {"[{]\n", "c.yaml:1:3: error: broken YAML: could not find flow map content"},
		"broken nesting": {strings.Repeat("[", 5000), "c.yaml:1:33: error: nested deeper than 32 levels"},
	} {
		t.Run(name, func(t *testing.T) {
			_, report := class.Parse([]byte(c.data), "c.yaml")
			var b strings.Builder
			if err := report.Print(&b); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want+"\n", b.String()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestTheShortFormIsReadAndWritten(t *testing.T) {
	c, err := class.ParseFlag("gpu, cpu=4,memory=8Gi,nvidia.com/gpu=1")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.String(), "gpu,cpu=4,memory=8Gi,nvidia.com/gpu=1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, bad := range []string{"", "cpu=1,memory=1", "a", "a,cpu", "a,cpu=1", "a,cpu=1,cpu=2,memory=1", "a,cpu=x,memory=1", "a,cpu=-1,memory=1", "a,cpu=1,memory=0"} {
		if c, err := class.ParseFlag(bad); err == nil {
			t.Errorf("%q was read as %v", bad, c)
		}
	}
}

func TestASetFindsByNameAndListsInOrder(t *testing.T) {
	r := map[string]int64{"cpu": 1, "memory": gib}
	s, err := class.NewSet([]class.Class{{Name: "b", Resources: r}, {Name: "a", Resources: r}})
	if err != nil {
		t.Fatal(err)
	}
	r["cpu"] = 7
	if c, ok := s.Get("b"); !ok || c.CPU() != 1 || c.MemoryBytes() != gib {
		t.Errorf("got %v %v", c, ok)
	}
	if _, ok := s.Get("c"); ok {
		t.Error("found a class that is not there")
	}
	if l := s.List(); len(l) != 2 || s.Len() != 2 || l[0].Name != "a" || l[1].Name != "b" {
		t.Errorf("got %v", l)
	}
	for name, bad := range map[string][]class.Class{
		"no name":   {{Resources: r}},
		"no memory": {{Name: "a", Resources: map[string]int64{"cpu": 1}}},
		"twice":     {{Name: "a", Resources: r}, {Name: "a", Resources: r}},
	} {
		if _, err := class.NewSet(bad); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestQuantityCountsTheEmptyHost(t *testing.T) {
	two := class.Class{Name: "c", Resources: map[string]int64{"cpu": 2, "memory": 4 * gib}}
	gpu := class.Class{Name: "g", Resources: map[string]int64{"cpu": 2, "memory": 4 * gib, "nvidia.com/gpu": 2}}
	host := class.Host{CPUs: 16, MemoryBytes: 64 * gib}
	for name, c := range map[string]struct {
		class   class.Class
		host    class.Host
		reserve class.Reserve
		want    int64
	}{
		"the scarcer resource decides":                     {two, host, class.Reserve{}, 8},
		"memory decides":                                   {two, class.Host{CPUs: 16, MemoryBytes: 9 * gib}, class.Reserve{}, 2},
		"reserved CPUs are not offered":                    {two, host, class.Reserve{CPUs: 1}, 7},
		"reserved memory is not offered":                   {two, host, class.Reserve{MemoryBytes: 60 * gib}, 1},
		"each machine costs its overhead":                  {two, class.Host{CPUs: 16, MemoryBytes: 16 * gib}, class.Reserve{MemoryPerMachine: 1}, 3},
		"CPUs are overcommitted":                           {two, class.Host{CPUs: 100, MemoryBytes: 4096 * gib}, class.Reserve{CPUOvercommit: 1.15}, 57},
		"overcommit below one is one":                      {two, host, class.Reserve{CPUOvercommit: 0.5}, 8},
		"overcommit that is no number is one":              {two, host, class.Reserve{CPUOvercommit: math.NaN()}, 8},
		"overcommit without end does not overflow":         {two, host, class.Reserve{CPUOvercommit: math.Inf(1)}, 16},
		"the number of machines is bounded":                {two, host, class.Reserve{MaxMachines: 3}, 3},
		"a reserve beyond the host leaves none":            {two, host, class.Reserve{CPUs: 17}, 0},
		"a class bigger than the host fits never":          {two, class.Host{CPUs: 1, MemoryBytes: gib}, class.Reserve{}, 0},
		"a resource that the host lacks fits never":        {gpu, host, class.Reserve{}, 0},
		"a resource that the host has is counted":          {gpu, class.Host{CPUs: 16, MemoryBytes: 64 * gib, Extra: map[string]int64{"nvidia.com/gpu": 5}}, class.Reserve{}, 2},
		"a class without cpu does not divide":              {class.Class{Resources: map[string]int64{"memory": 1}}, host, class.Reserve{}, 0},
		"a class without memory does not divide":           {class.Class{Resources: map[string]int64{"cpu": 1}}, host, class.Reserve{MemoryPerMachine: 1}, 0},
		"an unknown host has room for none":                {two, class.Host{}, class.Reserve{}, 0},
		"memory near the end of 64 bits does not overflow": {class.Class{Resources: map[string]int64{"cpu": 1, "memory": math.MaxInt64}}, host, class.Reserve{MemoryPerMachine: 1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := class.Quantity(c.class, c.host, c.reserve); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestFreeIsWhatQuantityCountsWith(t *testing.T) {
	h := class.Host{CPUs: 16, MemoryBytes: 64 * gib}
	got := class.Free(h, class.Reserve{CPUs: 2, MemoryBytes: gib, CPUOvercommit: 1.5, MaxMachines: 9})
	if want := (class.Capacity{CPUs: 21, MemoryBytes: 63 * gib, Machines: 9}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := class.Free(class.Host{}, class.Reserve{CPUs: 2, MemoryBytes: gib, MaxMachines: -1}); got != (class.Capacity{}) {
		t.Errorf("an unknown host has %+v", got)
	}
}

func TestQuantityMachinesFitAndOneMoreDoesNot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := func(label string, lo, hi int64) int64 { return rapid.Int64Range(lo, hi).Draw(t, label) }
		c := class.Class{Resources: map[string]int64{"cpu": n("cpu", 1, 64), "memory": n("memory", 1, 1<<40)}}
		h := class.Host{CPUs: n("cpus", 0, 1024), MemoryBytes: n("mem", 0, 1<<44)}
		r := class.Reserve{CPUs: n("rcpu", 0, 8), MemoryBytes: n("rmem", 0, 1<<34), MemoryPerMachine: n("over", 0, 1<<28)}
		fits := func(k int64) bool {
			return k*c.CPU() <= max(0, h.CPUs-r.CPUs) && k*(c.MemoryBytes()+r.MemoryPerMachine) <= max(0, h.MemoryBytes-r.MemoryBytes)
		}
		q := class.Quantity(c, h, r)
		if q < 0 || !fits(q) || fits(q+1) {
			t.Fatalf("quantity %d of %v on %v with %v", q, c, h, r)
		}
	})
}

func FuzzParseNeverPanics(f *testing.F) {
	for _, s := range []string{"", "- metadata: {name: a}\n  capabilities: {cpu: 1, memory: 1Gi}\n", "[{\"a\":1}]", "- ? a\n", "- &a b\n- *a\n", "- <<: {}\n", "- !!int 5\n", "a: |\n  x\n", "- -1e99\n", "%YAML 1.2\n---\n-\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		classes, report := class.Parse(data, "c")
		if report.Err() != nil {
			return
		}
		if _, err := class.NewSet(classes); err != nil {
			t.Errorf("a file without errors makes no set: %v", err)
		}
	})
}
