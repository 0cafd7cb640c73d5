// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package document reads operator-written YAML or JSON strictly and says where everything stands.
//
// It exists because a typo in a daemon's configuration must be found with its line before
// anything starts, and because one mistake must not hide the next. It knows YAML, positions,
// quantities and good guesses; it knows nothing about any particular key. It must never panic on
// any input, never accept a key twice, and never follow anchors, aliases, tags or merge keys:
// what a reader sees at a line is what counts at that line.
package document

import (
	"fmt"
	"strconv"
)

// Kind is the type of value as written.
type Kind string

// The kinds of a node.
const (
	Null   Kind = "nothing"
	Bool   Kind = "a boolean"
	Int    Kind = "an integer"
	Float  Kind = "a number"
	String Kind = "a string"
	List   Kind = "a list"
	Map    Kind = "a mapping"
)

// Node is one value of a document with its place.
type Node struct {
	Kind Kind
	Pos  Position
	// Text is the scalar's value as written, unquoted and unescaped; empty for lists and mappings.
	Text   string
	Items  []*Node
	Fields []Entry
}

// Entry is one key of a mapping.
type Entry struct {
	Key   string
	Pos   Position
	Value *Node
}

// Get returns the value of a key, or nil when the node is no mapping or lacks the key.
func (n *Node) Get(key string) *Node {
	if n == nil {
		return nil
	}
	for _, f := range n.Fields {
		if f.Key == key {
			return f.Value
		}
	}
	return nil
}

// Describe names the kind and, for scalars, the value: `the integer 5`.
func (n *Node) Describe() string {
	switch n.Kind {
	case Null, List, Map:
		return string(n.Kind)
	case String:
		return "the string " + strconv.Quote(clip(n.Text))
	case Bool:
		return "the boolean " + clip(n.Text)
	case Int:
		return "the integer " + clip(n.Text)
	default:
		return "the number " + clip(n.Text)
	}
}

// Join appends a key to a dotted path.
func Join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// Index appends a list index to a path.
func Index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
