// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
)

// Severity says whether a problem stops the daemon.
type Severity string

const (
	// Warning is a doubtful but workable value.
	Warning Severity = "warning"
	// Error is a value with which nothing may be started.
	Error Severity = "error"
)

// Position is a place in a source. Line and Column start at 1 and count
// characters; 0 means that the source has no lines, as a flag has none.
type Position struct {
	// Source is a file name, or a flag with its dashes.
	Source string `json:"source,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

// String renders "file:line:column", leaving out what is unknown.
func (p Position) String() string {
	if p.Line == 0 {
		return p.Source
	}
	return fmt.Sprintf("%s:%d:%d", p.Source, p.Line, p.Column)
}

// Problem is one finding about one place.
type Problem struct {
	Severity Severity `json:"severity"`
	Position Position `json:"position"`
	// Path is the dotted path of the key, with [n] for list items; empty for the document as a whole.
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
	// Suggestion is what to do or write instead; empty where there is no good guess.
	Suggestion string `json:"suggestion,omitempty"`
}

// String renders the problem as one line.
func (p Problem) String() string {
	var b strings.Builder
	if pos := p.Position.String(); pos != "" {
		b.WriteString(pos + ": ")
	}
	b.WriteString(string(p.Severity) + ": ")
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Suggestion != "" {
		b.WriteString("; " + p.Suggestion)
	}
	return b.String()
}

// Report collects everything found in one reading. The zero value is an empty report.
type Report struct {
	Problems []Problem `json:"problems"`
}

// Add appends a problem.
func (r *Report) Add(p Problem) { r.Problems = append(r.Problems, p) }

// Errorf appends an error without a suggestion.
func (r *Report) Errorf(pos Position, path, format string, args ...any) {
	r.Add(Problem{Severity: Error, Position: pos, Path: path, Message: fmt.Sprintf(format, args...)})
}

// Warnf appends a warning without a suggestion.
func (r *Report) Warnf(pos Position, path, format string, args ...any) {
	r.Add(Problem{Severity: Warning, Position: pos, Path: path, Message: fmt.Sprintf(format, args...)})
}

// Merge appends all problems of another report.
func (r *Report) Merge(other *Report) { r.Problems = append(r.Problems, other.Problems...) }

// Sort orders by source, then place, and keeps the order of finding within a place.
func (r *Report) Sort() {
	sort.SliceStable(r.Problems, func(i, j int) bool {
		a, b := r.Problems[i].Position, r.Problems[j].Position
		if (a.Line == 0) != (b.Line == 0) {
			return a.Line != 0
		}
		if a.Source != b.Source {
			return a.Source < b.Source
		}
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		return a.Column < b.Column
	})
}

// Warnings returns the problems that do not stop anything.
func (r *Report) Warnings() []Problem { return r.only(Warning) }

// Errors returns the problems that stop the daemon.
func (r *Report) Errors() []Problem { return r.only(Error) }

func (r *Report) only(s Severity) []Problem {
	var out []Problem
	for _, p := range r.Problems {
		if p.Severity == s {
			out = append(out, p)
		}
	}
	return out
}

// Err is nil when the report holds no error, else an error with one line for each.
func (r *Report) Err() error {
	found := r.Errors()
	if len(found) == 0 {
		return nil
	}
	lines := make([]string, len(found))
	for i, p := range found {
		lines[i] = p.String()
	}
	return errors.New(strings.Join(lines, "\n"))
}

// Print writes every problem, warnings too, one line each.
func (r *Report) Print(w io.Writer) error {
	for _, p := range r.Problems {
		if _, err := fmt.Fprintln(w, p); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	return nil
}
