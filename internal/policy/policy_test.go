// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
)

const header = `// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

`

const (
	maxFileLines     = 500
	maxFunctionLines = 80
	usualLines       = 45 // of 95 % of all functions
	usualPercent     = 95
)

func TestEveryFileHasTheLicenceHeader(t *testing.T) {
	_, all := tree(t)
	for _, s := range all {
		if !strings.HasPrefix(s.text, header) {
			t.Errorf("%s: does not begin with the licence header; put these two lines and an empty one first:\n%s", s.path,
				strings.TrimSpace(header))
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	_, all := tree(t)
	docs, names, onlyTests := map[string]string{}, map[string]string{}, map[string]bool{}
	for _, s := range all {
		if _, seen := onlyTests[s.dir]; !seen {
			onlyTests[s.dir] = true
		}
		onlyTests[s.dir] = onlyTests[s.dir] && s.test
		names[s.dir] = cmp.Or(names[s.dir], strings.TrimSuffix(s.syntax.Name.Name, "_test"))
	}
	for _, s := range all {
		// The doc comment belongs to the package and not to its tests, if there is more than tests.
		if s.syntax.Doc != nil && (!s.test || onlyTests[s.dir]) {
			docs[s.dir] += s.syntax.Doc.Text()
		}
	}
	for dir, name := range names {
		doc := docs[dir]
		starts := strings.HasPrefix(doc, "Package "+name+" ") || strings.HasPrefix(doc, "Package "+name+"_test ") ||
			name == "main" && (strings.HasPrefix(doc, "Command ") || strings.HasPrefix(doc, "Package main "))
		switch {
		case doc == "":
			t.Errorf("%s: package %s has no doc comment; write above a package clause (best in doc.go) what it is, why it "+
				"exists and what it must never do", dir, name)
		case !starts:
			t.Errorf("%s: the doc comment of package %s begins %q; begin it \"Package %s …\" (\"Command …\" for main)", dir, name,
				firstWords(doc), name)
		}
	}
}

func firstWords(text string) string {
	words := strings.Fields(text)
	return strings.Join(words[:min(4, len(words))], " ")
}

func TestFilesAreShort(t *testing.T) {
	_, all := tree(t)
	for _, s := range all {
		if n := strings.Count(s.text, "\n"); n > maxFileLines {
			t.Errorf("%s: has %d lines, the limit is %d; split it by subject", s.path, n, maxFileLines)
		}
	}
}

// Tests are left out: a table of cases is long and easy to read.
func TestFunctionsAreShort(t *testing.T) {
	fset, all := tree(t)
	var functionsFound []function
	for _, s := range all {
		if !s.test {
			functionsFound = append(functionsFound, functions(fset, s)...)
		}
	}
	slices.SortFunc(functionsFound, func(a, b function) int { return b.lines - a.lines })
	long := 0
	for _, f := range functionsFound {
		if f.lines > usualLines {
			long++
		}
		if f.lines > maxFunctionLines {
			t.Errorf("%s:%d: %s has %d lines, the limit is %d; give its steps names of their own", f.path, f.line, f.name,
				f.lines, maxFunctionLines)
		}
	}
	if allowed := len(functionsFound) * (100 - usualPercent) / 100; long > allowed {
		t.Errorf("%d of %d functions have more than %d lines, %d may (%d %%); split some of these:", long,
			len(functionsFound), usualLines, allowed, 100-usualPercent)
		for _, f := range functionsFound[:min(long, 20)] {
			t.Errorf("%s:%d: %s has %d lines", f.path, f.line, f.name, f.lines)
		}
	}
}

func TestNoPackageIsADrawer(t *testing.T) {
	drawers := []string{"util", "utils", "common", "helper", "helpers", "misc", "lib", "shared"}
	_, all := tree(t)
	reported := map[string]bool{}
	for _, s := range all {
		name := strings.TrimSuffix(s.syntax.Name.Name, "_test")
		base := s.dir[strings.LastIndex(s.dir, "/")+1:]
		if (slices.Contains(drawers, name) || slices.Contains(drawers, base)) && !reported[s.dir] {
			reported[s.dir] = true
			t.Errorf("%s: package %s is named for nothing in particular; name it for the one thing it is about, or move its "+
				"parts to where they are used", s.dir, name)
		}
	}
}
