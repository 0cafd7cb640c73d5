// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config/document"
)

// Explanation is one field with its present value and where that comes from.
type Explanation struct {
	Path    string   `json:"path"`
	Doc     string   `json:"doc"`
	Type    Type     `json:"type"`
	Allowed []string `json:"allowed,omitempty"`
	Limits  string   `json:"limits,omitempty"`
	Empty   string   `json:"empty,omitempty"`
	// Default and Value are written as on a command line; a list has an item per element.
	Default []string `json:"default"`
	Value   []string `json:"value"`
	// Source is "default", a place in the document, or a flag.
	Source  string   `json:"source"`
	Flag    string   `json:"flag"`
	Aliases []string `json:"aliases,omitempty"`
	Since   string   `json:"since"`
}

// Explain writes what path means, may be, is, and why: a card for one field, and for a section or
// the whole configuration (path "") a commented document that Load reads. An unknown path is an error
// with a guess.
func Explain(w io.Writer, cfg *Config, sources Sources, path string) error {
	found, err := Explanations(cfg, sources, path)
	if err != nil {
		return err
	}
	var out string
	if len(found) == 1 && found[0].Path == path {
		out = found[0].card()
	} else {
		out = tree(cfg, found)
	}
	if _, err := io.WriteString(w, out); err != nil {
		return fmt.Errorf("write explanation: %w", err)
	}
	return nil
}

// ExplainJSON writes the same as a JSON list.
func ExplainJSON(w io.Writer, cfg *Config, sources Sources, path string) error {
	found, err := Explanations(cfg, sources, path)
	if err != nil {
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(found); err != nil {
		return fmt.Errorf("write explanation: %w", err)
	}
	return nil
}

// Explanations returns the fields at and below path, all of them for "". An unknown path is an error.
func Explanations(cfg *Config, sources Sources, path string) ([]Explanation, error) {
	standard := Default()
	var out []Explanation
	for _, f := range Fields() {
		if path != "" && f.Path != path && !strings.HasPrefix(f.Path, path+".") {
			continue
		}
		e := Explanation{
			Path: f.Path, Doc: f.Doc, Type: f.Type, Allowed: f.Allowed, Limits: f.Limits, Empty: f.Empty,
			Default: texts(f, &standard), Value: texts(f, cfg), Source: "default", Flag: "--" + f.Flag, Since: f.Since,
		}
		if pos, set := sources[f.Path]; set {
			e.Source = pos.String()
		}
		for _, a := range f.Aliases {
			e.Aliases = append(e.Aliases, "--"+a.Name)
		}
		out = append(out, e)
	}
	if len(out) == 0 {
		return nil, noSuchPath(path)
	}
	return out, nil
}

// texts is never nil, so that JSON has a list where a list is empty.
func texts(f Field, c *Config) []string {
	return append([]string{}, f.codec.get(c)...)
}

func noSuchPath(path string) error {
	fields := Fields()
	var candidates []string
	for _, f := range fields {
		keys := strings.Split(f.Path, ".")
		for i := range keys {
			candidates = append(candidates, strings.Join(keys[:i+1], "."))
		}
	}
	near := elsewhere(fields, strings.TrimPrefix(path, "--"))
	if near == "" {
		near = document.Nearest(path, candidates)
	}
	if near != "" {
		return fmt.Errorf("explain %s: there is no such key; did you mean %s?", path, near)
	}
	return fmt.Errorf("explain %s: there is no such key; without a key all are listed", path)
}

// form says how a value is written: "integer, 1 to 64".
func (e Explanation) form() string {
	if len(e.Allowed) > 0 {
		return "one of " + strings.Join(e.Allowed, ", ")
	}
	parts := []string{string(e.Type)}
	if e.Type == TypePath {
		parts[0] = "absolute path"
	}
	if e.Limits != "" {
		parts = append(parts, e.Limits)
	}
	if e.Empty != "" {
		parts = append(parts, "empty: "+e.Empty)
	}
	return strings.Join(parts, "; ")
}

func (e Explanation) flags() string {
	if len(e.Aliases) == 0 {
		return e.Flag
	}
	return e.Flag + ", alias " + strings.Join(e.Aliases, ", ")
}

func (e Explanation) card() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n  %s\n\n", e.Path, e.Doc)
	for _, row := range [][2]string{
		{"type", e.form()},
		{"default", shown(e.Type, e.Default)},
		{"value", shown(e.Type, e.Value)},
		{"source", e.Source},
		{"flag", e.flags()},
		{"since", e.Since},
	} {
		fmt.Fprintf(&b, "  %-8s %s\n", row[0], row[1])
	}
	return b.String()
}

func tree(cfg *Config, found []Explanation) string {
	byPath := map[string]Explanation{}
	for _, e := range found {
		byPath[e.Path] = e
	}
	w := newWriter(cfg)
	w.comment = func(f Field) []string {
		e := byPath[f.Path]
		return []string{
			e.Doc,
			e.form(),
			fmt.Sprintf("default %s; source %s; flag %s", shown(e.Type, e.Default), e.Source, e.flags()),
		}
	}
	for _, f := range Fields() {
		if _, wanted := byPath[f.Path]; wanted {
			w.field(f)
		}
	}
	return w.buf.String()
}

// shown writes a value for a reader; a list is in brackets.
func shown(t Type, texts []string) string {
	if t.IsList() {
		return "[" + strings.Join(texts, "; ") + "]"
	}
	if texts[0] == "" {
		return `""`
	}
	return texts[0]
}
