// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"regexp"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

var digits = regexp.MustCompile(`^[+-]?[0-9]+$`)

// node converts the library's tree, which has a type for every notation, to one that has
// a type for every meaning. It returns nil for what it had to refuse.
func (p *reader) node(n ast.Node, path string) *Node {
	switch v := n.(type) {
	case nil:
		return &Node{Kind: Null, Pos: Position{Source: p.source}}
	case *ast.MappingNode:
		return p.mapping(p.start(v), v.Values, path)
	case *ast.MappingValueNode:
		return p.mapping(p.start(v), []*ast.MappingValueNode{v}, path)
	case *ast.SequenceNode:
		out := &Node{Kind: List, Pos: p.at(v.GetToken())}
		for i, item := range v.Values {
			if c := p.node(item, Index(path, i)); c != nil {
				out.Items = append(out.Items, c)
			}
		}
		return out
	default:
		return p.scalar(n, path)
	}
}

func (p *reader) scalar(n ast.Node, path string) *Node {
	out := &Node{Pos: p.at(n.GetToken())}
	switch v := n.(type) {
	case *ast.NullNode:
		out.Kind = Null
	case *ast.BoolNode:
		out.Kind, out.Text = Bool, v.Token.Value
	case *ast.IntegerNode:
		out.Kind, out.Text = Int, v.Token.Value
	case *ast.FloatNode:
		out.Kind, out.Text = Float, v.Token.Value
	case *ast.InfinityNode:
		out.Kind, out.Text = Float, v.Token.Value
	case *ast.NanNode:
		out.Kind, out.Text = Float, v.Token.Value
	case *ast.StringNode:
		out.Kind, out.Text = String, v.Value
		if v.Token.Type == token.StringType && digits.MatchString(v.Value) {
			out.Kind = Int // the library gives up on integers beyond 64 bits
		}
	case *ast.LiteralNode:
		out.Kind, out.Text = String, v.Value.Value
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return p.refuse(out.Pos, path, "anchors, aliases and merge keys are not supported", "write the value out")
	case *ast.TagNode:
		return p.refuse(out.Pos, path, "tags are not supported", "remove the tag")
	default:
		return p.refuse(out.Pos, path, "this YAML notation is not supported", "")
	}
	return out
}

func (p *reader) refuse(pos Position, path, message, suggestion string) *Node {
	p.report.Add(Problem{Severity: Error, Position: pos, Path: path, Message: message, Suggestion: suggestion})
	return nil
}

func (p *reader) mapping(pos Position, values []*ast.MappingValueNode, path string) *Node {
	out := &Node{Kind: Map, Pos: pos}
	first := map[string]Position{}
	for _, v := range values {
		key, keyPos, ok := p.key(v.Key, path)
		if !ok {
			continue
		}
		sub := Join(path, key)
		if before, seen := first[key]; seen {
			p.report.Errorf(keyPos, sub, "the key stands twice, first at line %d", before.Line)
			continue
		}
		first[key] = keyPos
		if c := p.node(v.Value, sub); c != nil {
			if c.Pos.Line == 0 {
				c.Pos = keyPos
			}
			out.Fields = append(out.Fields, Entry{Key: key, Pos: keyPos, Value: c})
		}
	}
	return out
}

func (p *reader) key(n ast.Node, path string) (string, Position, bool) {
	if n == nil {
		p.refuse(Position{Source: p.source}, path, "a key is missing", "")
		return "", Position{}, false
	}
	pos := p.at(n.GetToken())
	scalar := p.scalar(n, path)
	if scalar == nil {
		return "", pos, false
	}
	if scalar.Kind != String {
		p.refuse(pos, path, "a key must be a string, not "+scalar.Describe(), "put it in quotes")
		return "", pos, false
	}
	return scalar.Text, pos, true
}

// start is the place of a mapping's first key: the library's own token of a block mapping is its colon.
func (p *reader) start(n ast.Node) Position {
	switch v := n.(type) {
	case *ast.MappingNode:
		if !v.IsFlowStyle && len(v.Values) > 0 && v.Values[0].Key != nil {
			return p.at(v.Values[0].Key.GetToken())
		}
	case *ast.MappingValueNode:
		if v.Key != nil {
			return p.at(v.Key.GetToken())
		}
	}
	return p.at(n.GetToken())
}
