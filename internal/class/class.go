// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package class knows the machine classes that this server offers and how many machines of
// each fit.
//
// It exists because the pool controller matches classes by name and exactly equal resource map,
// and schedules by the count this package gives: both must be right and stable. It must never
// add, drop or rename a capability, never divide by a missing one, and never look at the host
// itself: what the host has is an argument.
package class

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The capabilities that every class has.
const (
	CPU    = "cpu"
	Memory = "memory"
)

// Class is a machine class.
type Class struct {
	Name string
	// Resources holds exactly the class' capabilities, each rounded up to a whole number:
	// cores for "cpu", bytes for "memory", pieces for everything else.
	Resources map[string]int64
}

// CPU returns the number of virtual CPUs, 0 if the class has none.
func (c Class) CPU() int64 { return c.Resources[CPU] }

// MemoryBytes returns the memory in bytes, 0 if the class has none.
func (c Class) MemoryBytes() int64 { return c.Resources[Memory] }

// Extra returns the names of the capabilities beyond cpu and memory, sorted.
func (c Class) Extra() []string {
	var out []string
	for name := range c.Resources {
		if name != CPU && name != Memory {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// clone protects a set from callers that change a map they were given.
func (c Class) clone() Class { return Class{Name: c.Name, Resources: maps.Clone(c.Resources)} }

// Set is the classes of this server. It does not change after it is made; the zero value is empty.
type Set struct {
	sorted []Class
}

// NewSet copies the classes. Names must be present and unique, cpu and memory positive.
func NewSet(classes []Class) (*Set, error) {
	s := &Set{sorted: make([]Class, 0, len(classes))}
	for _, c := range classes {
		if c.Name == "" {
			return nil, fmt.Errorf("make class set: a class has no name")
		}
		if c.CPU() <= 0 || c.MemoryBytes() <= 0 {
			return nil, fmt.Errorf("make class set: class %q needs cpu and memory above zero", c.Name)
		}
		s.sorted = append(s.sorted, c.clone())
	}
	slices.SortFunc(s.sorted, func(a, b Class) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(s.sorted); i++ {
		if s.sorted[i].Name == s.sorted[i-1].Name {
			return nil, fmt.Errorf("make class set: class %q is there twice", s.sorted[i].Name)
		}
	}
	return s, nil
}

// Get returns the class of that name. Its map must not be changed.
func (s *Set) Get(name string) (Class, bool) {
	i, found := slices.BinarySearchFunc(s.sorted, name, func(c Class, name string) int {
		return strings.Compare(c.Name, name)
	})
	if !found {
		return Class{}, false
	}
	return s.sorted[i], true
}

// List returns all classes in the order of their names. Their maps must not be changed.
func (s *Set) List() []Class { return slices.Clone(s.sorted) }

// Len is the number of classes.
func (s *Set) Len() int { return len(s.sorted) }
