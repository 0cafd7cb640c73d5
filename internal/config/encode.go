// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
)

// YAML renders the whole configuration as a document that Load reads back to the same values.
func (c *Config) YAML() []byte {
	w := newWriter(c)
	for _, f := range Fields() {
		w.field(f)
	}
	return w.buf.Bytes()
}

// writer renders fields, in the table's order, as a tree.
type writer struct {
	cfg *Config
	buf bytes.Buffer
	// open is the path of keys that the last field stood below.
	open []string
	// comment returns the comment lines above a field; nil means none.
	comment func(Field) []string
}

func newWriter(c *Config) *writer {
	w := &writer{cfg: c}
	fmt.Fprintf(&w.buf, "apiVersion: %s\nkind: %s\n", APIVersion, Kind)
	return w
}

func (w *writer) field(f Field) {
	keys := strings.Split(f.Path, ".")
	parents := keys[:len(keys)-1]
	same := 0
	for same < len(parents) && same < len(w.open) && parents[same] == w.open[same] {
		same++
	}
	if w.comment != nil && (same == 0 || len(parents) > same) {
		w.buf.WriteByte('\n')
	}
	for i := same; i < len(parents); i++ {
		fmt.Fprintf(&w.buf, "%s%s:\n", indent(i), parents[i])
	}
	w.open = parents
	depth := len(parents)
	if w.comment != nil {
		for _, line := range w.comment(f) {
			fmt.Fprintf(&w.buf, "%s# %s\n", indent(depth), line)
		}
	}
	fmt.Fprintf(&w.buf, "%s%s:", indent(depth), keys[len(keys)-1])
	w.value(f, depth)
}

func (w *writer) value(f Field, depth int) {
	texts := f.codec.get(w.cfg)
	switch {
	case !f.Type.IsList():
		fmt.Fprintf(&w.buf, " %s\n", plainOrQuoted(f.Type, texts[0]))
	case len(texts) == 0 && f.Type == TypeNetworks:
		w.buf.WriteString(" {}\n")
	case len(texts) == 0:
		w.buf.WriteString(" []\n")
	case f.Type == TypeNetworks:
		w.buf.WriteByte('\n')
		networkYAML(&w.buf, w.cfg.Network.ProviderNet.Networks, depth+1)
	case f.Type == TypeClasses:
		w.buf.WriteByte('\n')
		for _, c := range w.cfg.MachineClasses.Inline {
			w.class(c, indent(depth+1))
		}
	default:
		w.buf.WriteByte('\n')
		for _, t := range texts {
			fmt.Fprintf(&w.buf, "%s- %s\n", indent(depth+1), quote(t))
		}
	}
}

func (w *writer) class(c class.Class, in string) {
	fmt.Fprintf(&w.buf, "%s- metadata:\n%s    name: %s\n%s  capabilities:\n", in, in, quote(c.Name), in)
	for _, name := range append([]string{class.CPU, class.Memory}, c.Extra()...) {
		fmt.Fprintf(&w.buf, "%s    %s: %d\n", in, quote(name), c.Resources[name])
	}
}

func indent(depth int) string { return strings.Repeat("  ", depth) }

// bare matches strings that every YAML reader takes for the same string without quotes.
var bare = regexp.MustCompile(`^[a-zA-Z/][a-zA-Z0-9/_.-]+$`)

// reserved are the words that some YAML reader takes for something else than a string.
var reserved = regexp.MustCompile(`(?i)^(true|false|yes|no|on|off|null)$`)

func plainOrQuoted(t Type, s string) string {
	switch t {
	case TypeInt, TypeBool, TypeRatio, TypeBytes, TypeDuration:
		return s
	case TypeAmount:
		if s != "" {
			return s
		}
	}
	return quote(s)
}

func quote(s string) string {
	if bare.MatchString(s) && !reserved.MatchString(s) {
		return s
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b) // a JSON string is a YAML string
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return `""`
	}
	return strings.TrimSuffix(b.String(), "\n")
}
