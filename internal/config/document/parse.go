// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// MaxSize bounds a document, in bytes. Ten thousand machine classes need less.
	MaxSize = 1 << 20
	// maxDepth bounds nesting. The parser is recursive, and a stack overflow cannot be recovered from.
	maxDepth = 32
)

// Parse reads exactly one YAML or JSON document. The node is nil when there is none or when the
// syntax is broken; duplicate keys and refused YAML features are reported and the rest is returned.
func Parse(data []byte, source string) (*Node, *Report) {
	p := &reader{source: source, report: &Report{}}
	if !p.readable(data) {
		return nil, p.report
	}
	if json.Valid(data) {
		// YAML forbids tabs as indentation, JSON does not; inside JSON strings there are none.
		data = bytes.ReplaceAll(data, []byte{'\t'}, []byte{' '})
	}
	file, err := p.parse(data)
	if err != nil {
		p.syntax(err)
		return nil, p.report
	}
	body := p.single(file)
	if body == nil {
		return nil, p.report
	}
	return p.node(body, ""), p.report
}

type reader struct {
	source string
	report *Report
}

// readable refuses what the parser must not see.
func (p *reader) readable(data []byte) bool {
	whole := Position{Source: p.source}
	switch {
	case len(data) > MaxSize:
		p.report.Errorf(whole, "", "the document has %d bytes, more than the limit of %d", len(data), MaxSize)
		return false
	case !utf8.Valid(data):
		p.report.Errorf(p.firstBad(data, func(r rune, size int) bool { return r == utf8.RuneError && size == 1 }), "", "the text is not UTF-8")
		return false
	case bytes.IndexFunc(data, control) >= 0:
		p.report.Errorf(p.firstBad(data, func(r rune, _ int) bool { return control(r) }), "", "the text holds a control character")
		return false
	}
	return true
}

func control(r rune) bool { return (r < ' ' && r != '\n' && r != '\r' && r != '\t') || r == 0x7f }

func (p *reader) firstBad(data []byte, bad func(r rune, size int) bool) Position {
	pos := Position{Source: p.source, Line: 1, Column: 1}
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		if bad(r, size) {
			break
		}
		pos.Column++
		if r == '\n' {
			pos.Line, pos.Column = pos.Line+1, 1
		}
		data = data[size:]
	}
	return pos
}

// parse turns a panic of the YAML library into an error: its grammar code is large, and an
// operator's typo must not look like a crash.
func (p *reader) parse(data []byte) (file *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			file, err = nil, fmt.Errorf("the YAML is broken in a way that its parser cannot name (%v)", r)
		}
	}()
	tokens := lexer.Tokenize(string(data))
	if tk := tooDeep(tokens); tk != nil {
		p.report.Errorf(p.at(tk), "", "nested deeper than %d levels", maxDepth)
		return nil, errReported
	}
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

var errReported = errors.New("already reported")

// tooDeep counts the openers that nest without needing a line each.
func tooDeep(tokens token.Tokens) *token.Token {
	flow, line, onLine := 0, 0, 0
	for _, tk := range tokens {
		if tk.Position.Line != line {
			line, onLine = tk.Position.Line, 0
		}
		switch tk.Type {
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.TagType:
			onLine++
		case token.MappingValueType:
			if flow == 0 {
				onLine++
			}
		}
		if flow > maxDepth || onLine > maxDepth || tk.Position.IndentLevel > maxDepth {
			return tk
		}
	}
	return nil
}

func (p *reader) syntax(err error) {
	if errors.Is(err, errReported) {
		return
	}
	var located yaml.Error
	if errors.As(err, &located) {
		p.report.Errorf(p.at(located.GetToken()), "", "broken YAML: %s", located.GetMessage())
		return
	}
	p.report.Errorf(Position{Source: p.source}, "", "broken YAML: %s", strings.TrimSpace(err.Error()))
}

// single returns the body of the only document. Empty documents beside it, as a trailing "---"
// makes them, say nothing and are let through.
func (p *reader) single(file *ast.File) ast.Node {
	var body ast.Node
	for _, doc := range file.Docs {
		if doc == nil || doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil {
			p.report.Add(Problem{
				Severity: Error, Position: p.start(doc.Body),
				Message: "a second document starts here", Suggestion: "keep one document in the file",
			})
			continue
		}
		body = doc.Body
	}
	if body == nil || body.Type() == ast.NullType {
		p.report.Errorf(Position{Source: p.source}, "", "the document is empty")
		return nil
	}
	return body
}

func (p *reader) at(tk *token.Token) Position {
	if tk == nil || tk.Position == nil {
		return Position{Source: p.source}
	}
	return Position{Source: p.source, Line: tk.Position.Line, Column: max(1, tk.Position.Column)}
}
