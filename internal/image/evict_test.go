// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"pgregory.net/rapid"
)

// img writes a unit down: its blobs are single letters, all of size 10; age is how long ago it was used.
func img(blobs string, age int, flags ...string) *unit {
	u := &unit{digest: digest.Digest(blobs), complete: true, lastUsed: time.Unix(1e9-int64(age), 0)}
	for _, b := range strings.Split(blobs, "") {
		u.blobs = append(u.blobs, digest.Digest(b))
	}
	for _, f := range flags {
		switch f {
		case "used":
			u.users = []string{"machine"}
		case "leased":
			u.leased = true
		}
	}
	return u
}

func TestTheChoiceOfWhatGoes(t *testing.T) {
	for name, c := range map[string]struct {
		units []*unit
		need  int64
		want  string
		freed int64
	}{
		"nothing is needed":                        {[]*unit{img("ab", 9)}, 0, "", 0},
		"nothing is there":                         {nil, 5, "", 0},
		"the least recently used goes":             {[]*unit{img("ab", 1), img("cd", 9), img("ef", 5)}, 20, "cd", 20},
		"a referenced one stays however old it is": {[]*unit{img("ab", 1), img("cd", 9, "used")}, 20, "ab", 20},
		"a leased one stays":                       {[]*unit{img("ab", 1, "leased"), img("cd", 9, "used")}, 20, "", 0},
		"what is shared with a referenced one does not count": {
			[]*unit{img("ab", 9), img("bc", 8, "used"), img("de", 7)}, 20, "de", 20,
		},
		"sharers free what they share only together": {[]*unit{img("ab", 9), img("cb", 8)}, 30, "ab cb", 30},
		"one that the next makes needless is spared": {[]*unit{img("a", 9), img("bcd", 8)}, 30, "bcd", 30},
		"too little is better than nothing":          {[]*unit{img("a", 9), img("b", 8), img("c", 7, "used")}, 1000, "a b", 20},
		"equals go in the order of their digests":    {[]*unit{img("b", 9), img("a", 9)}, 5, "a", 10},
	} {
		t.Run(name, func(t *testing.T) {
			victims, freed := choose(c.units, func(digest.Digest) int64 { return 10 }, c.need)
			var got []string
			for _, v := range victims {
				got = append(got, v.digest.String())
			}
			if d := cmp.Diff(c.want, strings.Join(got, " ")); d != "" || freed != c.freed {
				t.Errorf("freed %d, want %d; victims:\n%s", freed, c.freed, d)
			}
		})
	}
}

func TestNoChoiceTakesWhatIsNeededOrMoreThanItMust(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(0, 100), 6, 6).Draw(rt, "sizes")
		size := func(d digest.Digest) int64 { return sizes[d[0]-'a'] }
		var units []*unit
		for i := range rapid.IntRange(0, 7).Draw(rt, "units") {
			u := img("a", rapid.IntRange(0, 4).Draw(rt, "age"))
			u.digest, u.blobs = digest.Digest(fmt.Sprint(i)), nil
			for _, b := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}), 1, 4, rapid.ID[string]).Draw(rt, "blobs") {
				u.blobs = append(u.blobs, digest.Digest(b))
			}
			u.leased = rapid.Bool().Draw(rt, "leased")
			if rapid.Bool().Draw(rt, "used") {
				u.users = []string{"m"}
			}
			units = append(units, u)
		}
		need := rapid.Int64Range(-1, 400).Draw(rt, "need")
		victims, freed := choose(units, size, need)

		gone := map[*unit]bool{}
		for _, v := range victims {
			if !v.removable() || gone[v] {
				rt.Fatalf("%s is needed or taken twice", v.digest)
			}
			gone[v] = true
		}
		if got := freeing(units, gone, size); got != freed {
			rt.Fatalf("says that %d come free, but %d do", freed, got)
		}
		if need <= 0 && len(victims) > 0 {
			rt.Fatal("took something for nothing")
		}
		if freed < need {
			for _, u := range units {
				if u.removable() && !gone[u] {
					rt.Fatalf("%d are missing and %s stays", need-freed, u.digest)
				}
			}
			return
		}
		for _, v := range victims {
			gone[v] = false
			if freeing(units, gone, size) >= need {
				rt.Fatalf("%s could have stayed", v.digest)
			}
			gone[v] = true
		}
	})
}

// freeing counts anew what comes free when some units go.
func freeing(units []*unit, gone map[*unit]bool, size func(digest.Digest) int64) (n int64) {
	blobs := map[digest.Digest]bool{} // whether it goes
	for _, u := range units {
		for _, d := range u.blobs {
			if before, seen := blobs[d]; !seen || before {
				blobs[d] = gone[u]
			}
		}
	}
	for d, goes := range blobs {
		if goes {
			n += size(d)
		}
	}
	return n
}

func TestSizesAreWrittenForPeople(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1 MiB", 5 << 30: "5 GiB", 1<<63 - 1: "8 EiB",
	} {
		if got := HumanBytes(n); got != want {
			t.Errorf("%d is written %q, want %q", n, got, want)
		}
	}
}

func TestTheLimitsAreBytesOrAShare(t *testing.T) {
	if got := (Amount{Percent: 20}).of(1000); got != 200 {
		t.Errorf("20 %% of 1000 is %d", got)
	}
	if got := (Amount{Bytes: 7}).of(1000); got != 7 {
		t.Errorf("7 bytes are %d", got)
	}
	for name, o := range map[string]Options{
		"both":            {Budget: Amount{Bytes: 1, Percent: 1}},
		"negative":        {Reserve: Amount{Bytes: -1}},
		"more than all":   {Reserve: Amount{Percent: 101}},
		"a negative time": {SweepInterval: -1},
	} {
		o.Dir = t.TempDir()
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
