// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
)

// Report is the outcome.
type Report struct {
	Items    []Item         `json:"items"`
	Facts    host.Facts     `json:"facts"`
	Decision *host.Decision `json:"decision"` // null if no hypervisor can be used
}

// Count returns how many items have a status.
func (r Report) Count(s Status) int {
	n := 0
	for _, i := range r.Items {
		if i.Status == s {
			n++
		}
	}
	return n
}

// ExitCode is 1 if something failed, or, when strict, if there is a warning; else 0.
func (r Report) ExitCode(strict bool) int {
	if r.Count(Fail) > 0 || strict && r.Count(Warn) > 0 {
		return 1
	}
	return 0
}

// WriteJSON writes the report as one indented JSON document with the counts and the verdict.
func (r Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(struct {
		OK       bool `json:"ok"` // nothing failed
		Warnings int  `json:"warnings"`
		Failures int  `json:"failures"`
		Report
	}{r.Count(Fail) == 0, r.Count(Warn), r.Count(Fail), r})
}

// TextOptions says how the report is laid out.
type TextOptions struct {
	Color bool // ANSI colours for the status words
	Width int  // columns; 0 means 100
}

// Color reports whether output to a file should be coloured: a terminal, and no $NO_COLOR.
func Color(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
}

const (
	red, yellow, green, reset = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[0m"

	statusColumn = 6 // width of the status word and the gap after it
	leastText    = 30
)

// WriteText writes the report for people: one line an item where it fits, hints below, the verdict last.
func (r Report) WriteText(w io.Writer, o TextOptions) error {
	if o.Width == 0 {
		o.Width = 100
	}
	nameColumn := 0
	for _, i := range r.Items {
		nameColumn = max(nameColumn, len(i.Name)+2)
	}
	indent := statusColumn + nameColumn
	width := max(leastText, o.Width-indent)
	var b strings.Builder
	for _, i := range r.Items {
		b.WriteString(o.paint(i.Status) + strings.Repeat(" ", statusColumn-len(i.Status)))
		fmt.Fprintf(&b, "%-*s", nameColumn, i.Name)
		b.WriteString(strings.Join(wrap(i.Detail, width), "\n"+strings.Repeat(" ", indent)) + "\n")
		for n, line := range wrap(i.Hint, width-2) {
			bullet := "  "
			if n == 0 {
				bullet = "> "
			}
			b.WriteString(strings.Repeat(" ", indent) + bullet + line + "\n")
		}
	}
	b.WriteString("\n" + r.verdict() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (o TextOptions) paint(s Status) string {
	color, known := map[Status]string{OK: green, Warn: yellow, Fail: red}[s]
	if !o.Color || !known {
		return string(s)
	}
	return color + string(s) + reset
}

func (r Report) verdict() string {
	fails, warns := r.Count(Fail), r.Count(Warn)
	counts := fmt.Sprintf("%s, %s, %d ok.", count(fails, "failure"), count(warns, "warning"), r.Count(OK))
	switch {
	case fails > 0:
		return "This server is not fit to run machines as configured: " + counts
	case r.Decision == nil:
		return counts
	case warns > 0:
		return fmt.Sprintf("This server can run machines with %s, with reservations: %s", r.Decision.Driver, counts)
	default:
		return fmt.Sprintf("This server is fit to run machines with %s: %s", r.Decision.Driver, counts)
	}
}

// wrap breaks text at blanks into lines of at most width columns; a word that is longer stays whole.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
