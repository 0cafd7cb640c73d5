// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package class

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config/document"
)

// The type of a list item. Both fields may be left out.
const (
	APIVersion = "compute.ironcore.dev/v1alpha1"
	Kind       = "MachineClass"
)

// keys of a MachineClass. Everything but metadata.name and capabilities is let through unread,
// so that a file exported from a cluster works.
var (
	classKeys     = []string{"apiVersion", "kind", "metadata", "capabilities"}
	unreadKeys    = []string{"spec", "status"}
	requiredNames = []string{CPU, Memory}
)

// Parse reads a class file: a YAML or JSON list of MachineClass objects as libvirt-provider reads it.
// The source names the data in messages. The report holds every problem with its line; the classes
// are usable only when it has no error.
func Parse(data []byte, source string) ([]Class, *document.Report) {
	root, report := document.Parse(data, source)
	if root == nil {
		return nil, report
	}
	if root.Kind != document.List {
		report.Add(document.Problem{
			Severity: document.Error, Position: root.Pos,
			Message:    "want a list of MachineClass objects, found " + root.Describe(),
			Suggestion: `start each class with "- "`,
		})
		return nil, report
	}
	return FromNode(root, "", report), report
}

// FromNode reads the same list out of a larger document, at path.
func FromNode(list *document.Node, path string, report *document.Report) []Class {
	if list.Kind != document.List {
		report.Errorf(list.Pos, path, "want a list of MachineClass objects, found %s", list.Describe())
		return nil
	}
	r := &reader{report: report, names: map[string]document.Position{}}
	for i, item := range list.Items {
		r.class(item, document.Index(path, i))
	}
	r.twins(path)
	return r.classes
}

type reader struct {
	report  *document.Report
	names   map[string]document.Position
	classes []Class
}

func (r *reader) class(n *document.Node, path string) {
	if n.Kind != document.Map {
		r.report.Errorf(n.Pos, path, "want a MachineClass object, found %s", n.Describe())
		return
	}
	r.keys(n, path)
	r.constant(n, path, "apiVersion", APIVersion)
	r.constant(n, path, "kind", Kind)
	c := Class{Name: r.name(n, path), Resources: r.capabilities(n, path)}
	if c.Name == "" {
		return
	}
	if before, seen := r.names[c.Name]; seen {
		r.report.Errorf(n.Get("metadata").Get("name").Pos, path+".metadata.name",
			"class %q is defined twice, first at line %d", c.Name, before.Line)
		return
	}
	r.names[c.Name] = n.Get("metadata").Get("name").Pos
	r.classes = append(r.classes, c)
}

func (r *reader) keys(n *document.Node, path string) {
	for _, f := range n.Fields {
		if slices.Contains(classKeys, f.Key) || slices.Contains(unreadKeys, f.Key) {
			continue
		}
		p := document.Problem{
			Severity: document.Warning, Position: f.Pos, Path: document.Join(path, f.Key), Message: "the key is not read",
		}
		if near := document.Nearest(f.Key, classKeys); near != "" {
			p.Suggestion = fmt.Sprintf("did you mean %s?", near)
		}
		r.report.Add(p)
	}
}

func (r *reader) constant(n *document.Node, path, key, want string) {
	v := n.Get(key)
	if v == nil || (v.Kind == document.String && v.Text == want) {
		return
	}
	r.report.Add(document.Problem{
		Severity: document.Error, Position: v.Pos, Path: document.Join(path, key),
		Message: "found " + v.Describe(), Suggestion: "write " + want,
	})
}

func (r *reader) name(n *document.Node, path string) string {
	meta := n.Get("metadata")
	path = document.Join(path, "metadata")
	switch {
	case meta == nil || meta.Kind == document.Null:
		r.report.Errorf(n.Pos, path, "the class has no metadata.name")
		return ""
	case meta.Kind != document.Map:
		r.report.Errorf(meta.Pos, path, "want a mapping with the key name, found %s", meta.Describe())
		return ""
	}
	name := meta.Get("name")
	path = document.Join(path, "name")
	switch {
	case name == nil:
		r.report.Errorf(meta.Pos, path, "the class has no name")
	case name.Kind != document.String:
		r.report.Errorf(name.Pos, path, "want a string, found %s", name.Describe())
	case strings.TrimSpace(name.Text) == "":
		r.report.Errorf(name.Pos, path, "the name is empty")
	case strings.TrimSpace(name.Text) != name.Text:
		r.report.Errorf(name.Pos, path, "the name %q has blanks around it", name.Text)
	default:
		return name.Text
	}
	return ""
}

func (r *reader) capabilities(n *document.Node, path string) map[string]int64 {
	caps := n.Get("capabilities")
	path = document.Join(path, "capabilities")
	switch {
	case caps == nil || caps.Kind == document.Null:
		r.report.Errorf(n.Pos, path, "the class has no capabilities, but needs at least cpu and memory")
		return nil
	case caps.Kind != document.Map:
		r.report.Errorf(caps.Pos, path, "want a mapping of resource names to quantities, found %s", caps.Describe())
		return nil
	}
	out := map[string]int64{}
	for _, f := range caps.Fields {
		if v, ok := r.capability(f.Value, document.Join(path, f.Key)); ok {
			out[f.Key] = v
		}
	}
	for _, name := range requiredNames {
		if caps.Get(name) == nil {
			p := document.Problem{
				Severity: document.Error, Position: caps.Pos, Path: document.Join(path, name), Message: "the class has no " + name,
			}
			if near := document.Nearest(name, keysOf(caps)); near != "" {
				p.Suggestion = fmt.Sprintf("is %s a typo?", near)
			}
			r.report.Add(p)
		}
	}
	return out
}

func keysOf(n *document.Node) []string {
	keys := make([]string, len(n.Fields))
	for i, f := range n.Fields {
		keys[i] = f.Key
	}
	return keys
}

func (r *reader) capability(v *document.Node, path string) (int64, bool) {
	if v.Kind != document.String && v.Kind != document.Int && v.Kind != document.Float {
		r.report.Errorf(v.Pos, path, "want a quantity such as 4 or 8Gi, found %s", v.Describe())
		return 0, false
	}
	n, err := document.ParseQuantity(v.Text)
	if err != nil {
		r.report.Add(document.Problem{
			Severity: document.Error, Position: v.Pos, Path: path,
			Message: err.Error(), Suggestion: document.SuggestQuantity(v.Text),
		})
		return 0, false
	}
	if n <= 0 {
		r.report.Errorf(v.Pos, path, "%s is not above zero", v.Text)
		return 0, false
	}
	return n, true
}

// twins warns of classes that the pool controller cannot tell apart when a name does not match:
// it then looks for the one class with an equal map, and finds none if there are two.
func (r *reader) twins(path string) {
	first := map[string]string{}
	for _, c := range r.classes {
		if len(c.Resources) == 0 {
			continue
		}
		same := Class{Resources: c.Resources}.String()
		if name, seen := first[same]; seen {
			r.report.Warnf(r.names[c.Name], path,
				"classes %q and %q have the same capabilities, so a pool can tell them apart only by name", name, c.Name)
			continue
		}
		first[same] = c.Name
	}
}

// ParseFlag reads the short form for a command line: "small,cpu=2,memory=4Gi".
func ParseFlag(text string) (Class, error) {
	name, rest, _ := strings.Cut(text, ",")
	c := Class{Name: strings.TrimSpace(name), Resources: map[string]int64{}}
	if c.Name == "" || strings.Contains(c.Name, "=") {
		return Class{}, fmt.Errorf("%q does not start with a class name; write small,cpu=2,memory=4Gi", text)
	}
	for part := range strings.SplitSeq(rest, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || key == "" {
			return Class{}, fmt.Errorf("class %q: %q is not of the form resource=quantity", c.Name, part)
		}
		if _, twice := c.Resources[key]; twice {
			return Class{}, fmt.Errorf("class %q: %s is given twice", c.Name, key)
		}
		n, err := document.ParseQuantity(value)
		if err != nil {
			return Class{}, fmt.Errorf("class %q: %s: %w", c.Name, key, err)
		}
		if n <= 0 {
			return Class{}, fmt.Errorf("class %q: %s is not above zero", c.Name, key)
		}
		c.Resources[key] = n
	}
	for _, need := range requiredNames {
		if c.Resources[need] == 0 {
			return Class{}, fmt.Errorf("class %q has no %s", c.Name, need)
		}
	}
	return c, nil
}

// String renders the short form that ParseFlag reads.
func (c Class) String() string {
	parts := []string{c.Name, fmt.Sprintf("cpu=%d", c.CPU()), "memory=" + document.FormatBytes(c.MemoryBytes())}
	for _, name := range c.Extra() {
		parts = append(parts, fmt.Sprintf("%s=%d", name, c.Resources[name]))
	}
	return strings.Join(parts, ",")
}
