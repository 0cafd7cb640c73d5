// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config/document"
)

// AddFlags registers a flag for every field, and the aliases, which work but are not listed in the
// usage text. A flag's value is judged by Load, together with everything else, and not while flags
// are parsed. Call it at most once for a loader.
func (l *Loader) AddFlags(fs *pflag.FlagSet) {
	for _, f := range Fields() {
		l.add(fs, f, f.Flag, Alias{})
		for _, a := range f.Aliases {
			l.add(fs, f, a.Name, a)
			if flag := fs.Lookup(a.Name); flag != nil {
				flag.Hidden = true
			}
		}
	}
}

func (l *Loader) add(fs *pflag.FlagSet, f Field, name string, alias Alias) {
	v := &flagValue{field: f, name: name, alias: alias}
	l.flags = append(l.flags, v)
	usage := f.Doc
	if len(f.Allowed) > 0 {
		usage += " One of " + strings.Join(f.Allowed, ", ") + "."
	}
	if _, form, found := strings.Cut(f.Limits, "as a flag "); found {
		usage += " Written as " + form + "."
	}
	// pflag takes the first quoted word of a usage text for the name of the value.
	fs.VarP(v, name, "", strings.ReplaceAll(usage, "`", "'"))
	if f.Type == TypeBool {
		fs.Lookup(name).NoOptDefVal = "true"
	}
}

// flagValue keeps what was typed, for Load to read.
type flagValue struct {
	field Field
	name  string
	alias Alias
	typed []string
}

// Set implements pflag.Value.
func (v *flagValue) Set(s string) error {
	switch {
	case v.field.Type == TypeList && s == "":
		v.typed = []string{}
	case v.field.Type == TypeList:
		v.typed = append(v.typed, strings.Split(s, ",")...)
	case v.field.Type == TypeClasses || v.field.Type == TypeNetworks:
		v.typed = append(v.typed, s)
	default:
		v.typed = []string{s} // the last one counts, as with every other command
	}
	return nil
}

// String implements pflag.Value: pflag shows it as the default.
func (v *flagValue) String() string {
	if v.field.codec == nil {
		return ""
	}
	if v.typed != nil {
		return strings.Join(v.typed, ",")
	}
	c := Default()
	return strings.Join(v.field.codec.get(&c), ",")
}

// Type implements pflag.Value.
func (v *flagValue) Type() string {
	switch v.field.Type {
	case TypeList:
		return "list"
	case TypeClasses:
		return "class"
	case TypeNetworks:
		return "network"
	case TypeBool:
		return "bool"
	default:
		return string(v.field.Type)
	}
}

func (r *loading) applyFlags() {
	given := map[string]*flagValue{}
	for _, v := range r.loader.flags {
		if v.typed == nil {
			continue
		}
		pos := Position{Source: "--" + v.name}
		if other, twice := given[v.field.Path]; twice {
			if !slices.Equal(other.typed, v.typed) {
				r.report.Errorf(pos, v.field.Path, "contradicts --%s, which sets the same", other.name)
			}
			continue
		}
		given[v.field.Path] = v
		// A flag replaces the document's value, and with it what was wrong about its place in rules on several values.
		r.sources[v.field.Path] = pos
		r.bad[v.field.Path] = !r.flag(v, pos)
	}
}

func (r *loading) flag(v *flagValue, pos Position) bool {
	texts := slices.Clone(v.typed)
	for i := range texts {
		if v.alias.Values != nil {
			ours, ok := v.alias.Values[texts[i]]
			if !ok {
				known := slices.Sorted(maps.Keys(v.alias.Values))
				r.report.Add(Problem{
					Severity: document.Error, Position: pos, Path: v.field.Path,
					Message:    fmt.Sprintf("%q is none of %s", texts[i], strings.Join(known, ", ")),
					Suggestion: fmt.Sprintf("use --%s=%s", v.field.Flag, strings.Join(v.field.Allowed, "|")),
				})
				return false
			}
			texts[i] = ours
		}
		if v.field.Type == TypePath {
			full, err := r.fromWorkDir(texts[i])
			if err != nil {
				r.refuse(pos, v.field.Path, err)
				return false
			}
			texts[i] = full
		}
	}
	if !r.set(v.field, pos, v.field.Path, texts...) {
		return false
	}
	return v.field.Type != TypeClasses || r.distinct(pos)
}

// fromWorkDir lets a command line name files as a shell does. In a document, which any process may
// read from anywhere, paths are absolute.
func (r *loading) fromWorkDir(path string) (string, error) {
	if path == "" || filepath.IsAbs(path) || strings.Contains(path, "://") {
		return path, nil
	}
	dir := r.loader.WorkDir
	if dir == "" {
		wd, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("resolve the relative path %q: %w", path, err)
		}
		dir = wd
	}
	return filepath.Join(dir, path), nil
}

// distinct checks the classes given by flag as the document's are checked while they are read.
func (r *loading) distinct(pos Position) bool {
	seen := map[string]bool{}
	for _, c := range r.cfg.MachineClasses.Inline {
		if seen[c.Name] {
			r.report.Errorf(pos, "machineClasses.inline", "class %q is given twice", c.Name)
			return false
		}
		seen[c.Name] = true
	}
	return true
}
