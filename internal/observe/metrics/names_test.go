// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/operations/metrics.md anew")

var namesPage = filepath.Join("..", "..", "..", "docs", "operations", "metrics.md")

const namesTop = `<!-- Written by go test ./internal/observe/metrics -update. Do not edit by hand. -->
# Metrics

Served at ` + "`/metrics`" + ` of ` + "`servers.metricsAddress`" + `. Names and labels below are stable: one that changes is
announced in the changelog. Besides them there are ` + "`go_*` and `process_*`" + ` of the Prometheus client library.

A histogram has the series ` + "`_bucket`, `_sum` and `_count`" + `. Metrics named ` + "`chp_machine_*`" + ` with the label
` + "`machine`" + ` are told of the oldest ` + "`servers.perMachineMetrics`" + ` machines (500; 0 switches them off). Counters of
disks and interfaces are read from the VMMs every 30 s; QEMU counts disks alone, and
the host's kernel counts its taps.

| name | type | labels | meaning |
|---|---|---|---|
`

// family is a metric as a scrape shows it.
type family struct {
	kind, help string
	labels     map[string]bool
}

var labelName = regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)

// families reads the text form of a scrape.
func families(text string) map[string]*family {
	all := map[string]*family{}
	for line := range strings.Lines(text) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 4)
		switch {
		case words[0] == "#" && words[1] == "HELP":
			all[words[2]] = &family{help: words[3], labels: map[string]bool{}}
		case words[0] == "#" && words[1] == "TYPE":
			all[words[2]].kind = words[3]
		default:
			name, _, _ := strings.Cut(words[0], "{")
			f := all[name]
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base, ok := strings.CutSuffix(name, suffix); f == nil && ok {
					f = all[base]
				}
			}
			for _, l := range labelName.FindAllStringSubmatch(line, -1) {
				if l[1] != "le" {
					f.labels[l[1]] = true
				}
			}
		}
	}
	maps.DeleteFunc(all, func(name string, _ *family) bool {
		return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_")
	})
	return all
}

func TestNamesAndLabelsAreThoseOfThePage(t *testing.T) {
	text, _ := scrape(t, everything(t))
	var b strings.Builder
	b.WriteString(namesTop)
	all := families(text)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		labels := "–"
		if len(f.labels) > 0 {
			labels = "`" + strings.Join(slices.Sorted(maps.Keys(f.labels)), "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, f.kind, labels, strings.ReplaceAll(f.help, "|", `\|`))
		if !strings.HasPrefix(name, "chp_") && !strings.HasPrefix(name, "grpc_server_") {
			t.Errorf("%s is named like nobody's", name)
		}
		if f.kind == "counter" != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %s", name, f.kind)
		}
	}
	if *update {
		if err := os.WriteFile(namesPage, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(namesPage)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), b.String()); d != "" {
		t.Errorf("the metrics differ from the page (-page +now); if that is meant, run the test with -update and say it in "+
			"the changelog:\n%s", d)
	}
}

// pinned is what may be asked for: the names of the page, and those of histograms' series.
func pinned(t *testing.T) map[string]map[string]bool {
	t.Helper()
	raw, err := os.ReadFile(namesPage)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]map[string]bool{}
	row := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| (.*?) \\|")
	for _, m := range row.FindAllStringSubmatch(string(raw), -1) {
		labels := map[string]bool{"le": true, "job": true, "instance": true, "node": true}
		for _, l := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(m[3], -1) {
			labels[l[1]] = true
		}
		names[m[1]] = labels
		if m[2] == "histogram" {
			delete(names, m[1]) // has no series of that name itself
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				names[m[1]+suffix] = labels
			}
		}
	}
	if len(names) < 30 {
		t.Fatalf("the page has %d names", len(names))
	}
	return names
}
