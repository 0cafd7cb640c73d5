// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

var (
	root       = filepath.Join("..", "..", "..")
	rulesFile  = filepath.Join(root, "deploy", "prometheus", "alerts.yaml")
	boardFile  = filepath.Join(root, "deploy", "grafana", "dashboard.json")
	alertPages = filepath.Join(root, "docs", "operations", "alerts")
)

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func rules(t *testing.T) []rule {
	t.Helper()
	raw, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.UnmarshalWithOptions(raw, &file, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, g := range file.Groups {
		if g.Name == "" {
			t.Error("a group without a name")
		}
		all = append(all, g.Rules...)
	}
	if len(all) < 8 {
		t.Fatalf("%d rules", len(all))
	}
	return all
}

var (
	quoted   = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	grouping = regexp.MustCompile(`\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^)]*)\)`)
	selector = regexp.MustCompile(`([a-z_]+)?\{([^}]*)\}`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(?:=|!=|=~|!~)`)
	number   = regexp.MustCompile(`\b[0-9][0-9a-z.]*`)
	word     = regexp.MustCompile(`[a-zA-Z_][a-zA-Z0-9_]*`)
)

// words of the query language that the rules and the dashboard use.
var language = []string{
	"sum", "max", "min", "rate", "increase", "histogram_quantile", "and", "or", "unless", "on", "by", "ignoring", "group_left",
	"up", "topk", "__rate_interval",
}

// unknown returns the words of a query that are neither of the language nor pinned names, and labels no metric has.
func unknown(query string, names map[string]map[string]bool) []string {
	var bad []string
	known := func(labels map[string]bool, label string) bool {
		return labels[label] || label == "job" || label == "instance"
	}
	text := quoted.ReplaceAllString(query, `""`)
	for _, m := range selector.FindAllStringSubmatch(text, -1) {
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !known(names[m[1]], l[1]) {
				bad = append(bad, m[1]+"{"+l[1]+"}")
			}
		}
	}
	text = number.ReplaceAllString(selector.ReplaceAllString(text, "$1"), "")
	var grouped []string
	for _, m := range grouping.FindAllStringSubmatch(text, -1) {
		grouped = append(grouped, word.FindAllString(m[1], -1)...)
	}
	text = grouping.ReplaceAllString(text, "")
	var used []string
	for _, w := range word.FindAllString(text, -1) {
		switch {
		case names[w] != nil:
			used = append(used, w)
		case !slices.Contains(language, w):
			bad = append(bad, w)
		}
	}
	for _, l := range grouped {
		if !slices.ContainsFunc(used, func(name string) bool { return known(names[name], l) }) {
			bad = append(bad, "by ("+l+")")
		}
	}
	return bad
}

func TestTheCheckOfQueriesFindsMistakes(t *testing.T) {
	names := map[string]map[string]bool{"chp_machines": {"state": true}, "chp_x_bucket": {"le": true, "step": true}}
	for query, bad := range map[string]int{
		`sum by (state) (chp_machines{job="x"}) > 3`:                                 0,
		`histogram_quantile(0.99, sum by (le, step) (rate(chp_x_bucket[5m]))) > 1e3`: 0,
		`chp_machine > 0`:                 1,
		`chp_machines{class="a"}`:         1,
		`sum by (class) (chp_machines)`:   1,
		`sum(chp_x{step="a"}) / chp_x`:    3,
		`chp_machines{state="chp_other"}`: 0,
	} {
		if got := unknown(query, names); len(got) != bad {
			t.Errorf("%s: %v, want %d", query, got, bad)
		}
	}
}

func TestAlertsUsePinnedNamesAndHaveTheirPages(t *testing.T) {
	names := pinned(t)
	pages := map[string]bool{}
	for _, r := range rules(t) {
		if bad := unknown(r.Expr, names); len(bad) > 0 {
			t.Errorf("%s: %v in %s", r.Alert, bad, r.Expr)
		}
		if r.For == "" || r.Annotations["summary"] == "" || !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) {
			t.Errorf("%s is not complete: %+v", r.Alert, r)
		}
		page := r.Alert + ".md"
		if !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/operations/alerts/"+page) {
			t.Errorf("%s leads to %s", r.Alert, r.Annotations["runbook_url"])
		}
		if pages[page] {
			t.Errorf("%s is there twice", r.Alert)
		}
		pages[page] = true
		text, err := os.ReadFile(filepath.Join(alertPages, page))
		if err != nil {
			t.Errorf("%s has no page: %v", r.Alert, err)
			continue
		}
		for _, part := range []string{"# " + r.Alert + "\n", "\n## Meaning\n", "\n## Cause\n", "\n## What to do\n"} {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s lacks %q", page, strings.TrimSpace(part))
			}
		}
		for _, name := range regexp.MustCompile(`\bchp_[a-z_]+`).FindAllString(string(text), -1) {
			if names[name] == nil && names[name+"_count"] == nil {
				t.Errorf("%s speaks of %s", page, name)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(alertPages, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !pages[filepath.Base(f)] {
			t.Errorf("%s is about no alert", f)
		}
	}
}

func TestTheDashboardUsesPinnedNames(t *testing.T) {
	raw, err := os.ReadFile(boardFile)
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Title  string `json:"title"`
		UID    string `json:"uid"`
		Panels []struct {
			ID      int    `json:"id"`
			Title   string `json:"title"`
			Type    string `json:"type"`
			GridPos struct{ X, Y, W, H int }
			Targets []struct {
				Expr  string `json:"expr"`
				RefID string `json:"refId"`
			} `json:"targets"`
		} `json:"panels"`
		Templating struct {
			List []struct {
				Name  string `json:"name"`
				Query any    `json:"query"`
			} `json:"list"`
		} `json:"templating"`
	}
	if err := json.Unmarshal(raw, &board); err != nil {
		t.Fatal(err)
	}
	if board.Title == "" || board.UID == "" || len(board.Panels) < 10 {
		t.Fatalf("%q with %d panels", board.Title, len(board.Panels))
	}
	names := pinned(t)
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s: id %d at %+v", p.Title, p.ID, p.GridPos)
		}
		ids[p.ID] = true
		if len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("%s shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			if bad := unknown(strings.ReplaceAll(target.Expr, "$", ""), names); len(bad) > 0 {
				t.Errorf("%s: %v in %s", p.Title, bad, target.Expr)
			}
		}
	}
	for _, v := range board.Templating.List {
		for _, name := range regexp.MustCompile(`\bchp_[a-z_]+`).FindAllString(strings.TrimSpace(toString(v.Query)), -1) {
			if names[name] == nil {
				t.Errorf("variable %s asks for %s", v.Name, name)
			}
		}
	}
}

func toString(v any) string {
	raw, _ := json.Marshal(v)
	return string(raw)
}
