// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// leaves counts the exported fields of Config that are values and not sections.
func leaves(t reflect.Type) int {
	n := 0
	for f := range t.Fields() {
		if f.Type.Kind() == reflect.Struct && f.Type.PkgPath() == t.PkgPath() {
			n += leaves(f.Type)
			continue
		}
		n++
	}
	return n
}

func TestEveryValueOfConfigHasARowInTheTable(t *testing.T) {
	if got, want := len(Fields()), leaves(reflect.TypeFor[Config]()); got != want {
		t.Errorf("the table has %d rows for %d values", got, want)
	}
}

func TestRowsAreCompleteAndNamesUnique(t *testing.T) {
	paths, flags := map[string]bool{}, map[string]bool{}
	name := func(f string) {
		if flags[f] {
			t.Errorf("flag %s is there twice", f)
		}
		flags[f] = true
	}
	for _, f := range Fields() {
		if paths[f.Path] {
			t.Errorf("path %s is there twice", f.Path)
		}
		paths[f.Path] = true
		name(f.Flag)
		for _, a := range f.Aliases {
			name(a.Name)
		}
		if !strings.HasSuffix(f.Doc, ".") || f.Since == "" || f.Type == "" || f.codec == nil {
			t.Errorf("row %s is not complete: %+v", f.Path, f)
		}
		if f.Type != TypePath && f.Type != TypeString && f.Limits == "" {
			t.Errorf("row %s says nothing of its limits", f.Path)
		}
		for _, a := range f.Allowed {
			var c Config
			if err := f.codec.set(&c, []string{a}); err != nil {
				t.Errorf("%s refuses %s: %v", f.Path, a, err)
			}
		}
	}
}

func TestEachRowHasItsOwnPlaceAndAValidDefault(t *testing.T) {
	for _, f := range Fields() {
		standard, empty := Default(), Config{}
		values := f.codec.get(&standard)
		if len(values) == 0 || values[0] == "" {
			if f.Empty == "" {
				t.Errorf("%s is empty by default, but the row does not say what that means", f.Path)
			}
			continue
		}
		if err := f.codec.set(&empty, values); err != nil {
			t.Errorf("%s refuses its default: %v", f.Path, err)
		}
		if d := cmp.Diff(values, f.codec.get(&empty)); d != "" {
			t.Errorf("%s: %s", f.Path, d)
		}
		others := 0
		for _, g := range Fields() {
			base := Config{}
			if !reflect.DeepEqual(g.codec.get(&base), g.codec.get(&empty)) {
				others++
			}
		}
		if others > 1 {
			t.Errorf("setting %s changes %d values", f.Path, others)
		}
	}
}

func TestSectionsStandTogether(t *testing.T) {
	closed := map[string]bool{}
	last := ""
	for _, f := range Fields() {
		section := f.Path[:max(0, strings.Index(f.Path, "."))]
		if section != last {
			if closed[section] {
				t.Errorf("section %s is torn apart at %s", section, f.Path)
			}
			closed[last], last = true, section
		}
	}
}

func TestFlagNamesFollowFromPaths(t *testing.T) {
	for path, want := range map[string]string{
		"stateDir":                          "state-dir",
		"capacity.reservedCPUs":             "capacity-reserved-cpus",
		"images.plainHTTP":                  "images-plain-http",
		"capacity.memoryOverheadPerMachine": "capacity-memory-overhead-per-machine",
		"a.HTTPServer":                      "a-http-server",
	} {
		if got := kebab(path); got != want {
			t.Errorf("%s becomes %s, want %s", path, got, want)
		}
	}
}

func TestTheUsageTextShowsDefaultsAndHidesAliases(t *testing.T) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	(&Loader{}).AddFlags(fs)
	usage := fs.FlagUsages()
	for _, want := range []string{"--reconcile-workers integer", "(default 15)", "--stateDir", "--zap-encoder", "--log-level string"} {
		shown := strings.Contains(usage, want)
		if hidden := want == "--stateDir" || want == "--zap-encoder"; shown == hidden {
			t.Errorf("%q shown: %v in\n%s", want, shown, usage)
		}
	}
}
