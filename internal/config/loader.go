// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config/document"
)

// Report is everything that one reading found.
type Report = document.Report

// Problem is one finding.
type Problem = document.Problem

// Position is where a value or a problem stands.
type Position = document.Position

// ReadFile reads a whole file, as os.ReadFile does.
type ReadFile func(path string) ([]byte, error)

// Sources says where the value of each path comes from. A path that is missing has its default.
type Sources map[string]Position

// Loader puts defaults, document and flags together. The zero value is ready for use on this host.
type Loader struct {
	// GOOS and GOARCH are the platform that is configured; empty means this one.
	GOOS, GOARCH string
	// WorkDir is what a relative path given by flag starts from; empty means the current directory.
	WorkDir string

	flags   []*flagValue
	sources Sources
}

// Sources returns where the values of the last Load came from.
func (l *Loader) Sources() Sources { return l.sources }

// Load reads the document at path, puts the flags over it, and checks the outcome. An empty path
// means no document; a nil read means os.ReadFile. The configuration is never nil but may be used
// only when the report's Err is nil. Load may be called again, as for a changed document.
func (l *Loader) Load(read ReadFile, path string) (*Config, *Report) {
	if read == nil {
		read = os.ReadFile
	}
	run := &loading{
		loader: l, cfg: Default(), report: &Report{}, fields: Fields(),
		sources: Sources{}, bad: map[string]bool{},
	}
	if path != "" {
		run.file(read, path)
	}
	run.applyFlags()
	run.validate()
	run.report.Sort()
	l.sources = run.sources
	return &run.cfg, run.report
}

func (l *Loader) goos() string { return or(l.GOOS, runtime.GOOS) }

func (l *Loader) goarch() string { return or(l.GOARCH, runtime.GOARCH) }

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// loading is one run of Load.
type loading struct {
	loader  *Loader
	cfg     Config
	report  *Report
	fields  []Field
	sources Sources
	// bad holds the paths whose value was refused, so that rules about several values stay quiet on them.
	bad map[string]bool
}

func (r *loading) file(read ReadFile, path string) {
	data, err := read(path)
	if err != nil {
		r.report.Errorf(Position{Source: path}, "", "cannot read the document: %v", reason(err))
		return
	}
	root, report := document.Parse(data, path)
	r.report.Merge(report)
	if root == nil {
		return
	}
	if root.Kind != document.Map {
		r.report.Errorf(root.Pos, "", "want a mapping with apiVersion and kind, found %s", root.Describe())
		return
	}
	r.header(root, "apiVersion", APIVersion)
	r.header(root, "kind", Kind)
	r.section(root, "")
}

func (r *loading) header(root *document.Node, key, want string) {
	v := root.Get(key)
	p := Problem{Severity: document.Error, Path: key, Suggestion: fmt.Sprintf("write %s: %s", key, want)}
	switch {
	case v == nil:
		p.Position, p.Message = root.Pos, "the key is missing"
	case v.Kind != document.String || v.Text != want:
		p.Position, p.Message = v.Pos, "found "+v.Describe()
	default:
		return
	}
	r.report.Add(p)
}

// section walks a mapping of the document beside the table.
func (r *loading) section(n *document.Node, path string) {
	for _, f := range n.Fields {
		sub := document.Join(path, f.Key)
		if path == "" && (f.Key == "apiVersion" || f.Key == "kind") {
			continue
		}
		if field, ok := lookup(r.fields, sub); ok {
			r.leaf(field, f.Value)
			continue
		}
		switch {
		case len(children(r.fields, sub)) == 0:
			r.unknown(path, f)
		case f.Value.Kind == document.Map:
			r.section(f.Value, sub)
		case f.Value.Kind != document.Null: // a section whose keys are all commented out
			r.report.Add(Problem{
				Severity: document.Error, Position: f.Value.Pos, Path: sub,
				Message:    "want a mapping, found " + f.Value.Describe(),
				Suggestion: "its keys are " + strings.Join(children(r.fields, sub), ", "),
			})
		}
	}
}

// unknown guesses first among the keys of the same section, then at the same key elsewhere.
func (r *loading) unknown(path string, f document.Entry) {
	p := Problem{Severity: document.Error, Position: f.Pos, Path: document.Join(path, f.Key), Message: "unknown key"}
	near := document.Nearest(f.Key, children(r.fields, path))
	if near == "" {
		near = elsewhere(r.fields, f.Key)
	}
	if near != "" {
		p.Suggestion = fmt.Sprintf("did you mean %s?", near)
	}
	r.report.Add(p)
}

func (r *loading) leaf(field Field, v *document.Node) {
	before := len(r.report.Errors())
	r.sources[field.Path] = v.Pos
	switch {
	case v.Kind == document.Null:
		r.report.Add(Problem{
			Severity: document.Error, Position: v.Pos, Path: field.Path,
			Message: "the key has no value", Suggestion: "remove the key to get the default",
		})
	case field.Type == TypeClasses:
		r.cfg.MachineClasses.Inline = class.FromNode(v, field.Path, r.report)
	case field.Type == TypeNetworks:
		r.cfg.Network.ProviderNet.Networks = r.networksFrom(v, field.Path)
	case field.Type == TypeList:
		r.list(field, v)
	case !field.accepts(v.Kind):
		r.wrongType(field.Type.example(), field.Path, v)
	default:
		r.set(field, v.Pos, field.Path, v.Text)
	}
	r.bad[field.Path] = len(r.report.Errors()) > before
}

// list checks item by item, so that each problem has the place of its item.
func (r *loading) list(field Field, v *document.Node) {
	if v.Kind != document.List {
		r.wrongType(field.Type.example(), field.Path, v)
		return
	}
	var texts []string
	for i, item := range v.Items {
		path := document.Index(field.Path, i)
		if item.Kind != document.String {
			r.wrongType("a string", path, item)
			continue
		}
		if r.set(field, item.Pos, path, item.Text) {
			texts = append(texts, item.Text)
		}
	}
	if err := field.codec.set(&r.cfg, texts); err != nil {
		r.refuse(v.Pos, field.Path, err)
	}
}

func (r *loading) wrongType(want, path string, v *document.Node) {
	p := Problem{Severity: document.Error, Position: v.Pos, Path: path, Message: fmt.Sprintf("want %s, found %s", want, v.Describe())}
	if field, ok := lookup(r.fields, path); ok {
		switch {
		case field.Type == TypeDuration && v.Kind == document.Int:
			p.Suggestion = fmt.Sprintf("write %ss if seconds are meant", v.Text)
		case field.Type == TypeList && v.Kind == document.String:
			p.Suggestion = fmt.Sprintf("write [%q]", v.Text)
		case v.Kind == document.String && field.codec.set(new(Config), []string{v.Text}) == nil:
			p.Suggestion = "remove the quotes"
		case field.Type == TypeString && v.Kind != document.List && v.Kind != document.Map:
			p.Suggestion = "put it in quotes"
		}
	}
	r.report.Add(p)
}

func (r *loading) set(field Field, pos Position, path string, texts ...string) bool {
	if err := field.codec.set(&r.cfg, texts); err != nil {
		r.refuse(pos, path, err)
		return false
	}
	return true
}

func (r *loading) refuse(pos Position, path string, err error) {
	p := Problem{Severity: document.Error, Position: pos, Path: path, Message: err.Error()}
	var bad *valueError
	if errors.As(err, &bad) {
		p.Suggestion = bad.suggestion
	}
	r.report.Add(p)
}

func lookup(fields []Field, path string) (Field, bool) {
	for _, f := range fields {
		if f.Path == path {
			return f, true
		}
	}
	return Field{}, false
}

// children lists the keys directly below a path, "" for the document, in the table's order.
func children(fields []Field, path string) []string {
	var out []string
	for _, f := range fields {
		rest := f.Path
		if path != "" {
			below, ok := strings.CutPrefix(f.Path, path+".")
			if !ok {
				continue
			}
			rest = below
		}
		key, _, _ := strings.Cut(rest, ".")
		if len(out) == 0 || out[len(out)-1] != key {
			out = append(out, key)
		}
	}
	return out
}

// elsewhere finds the field that a misplaced key, or a flag's name used as a key, belongs to.
func elsewhere(fields []Field, key string) string {
	for _, f := range fields {
		names := []string{f.Path[strings.LastIndex(f.Path, ".")+1:], f.Flag}
		for _, a := range f.Aliases {
			names = append(names, a.Name)
		}
		for _, name := range names {
			if document.Same(name, key) {
				return f.Path
			}
		}
	}
	return ""
}
