// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
)

// fieldTag is the parsed form of a `ch` tag (see config.go).
type fieldTag struct {
	name, old                                         string
	req, opt, custom, path, usize, skipFalse, since53 bool
	enum                                              []string
	def                                               string
}

func parseTag(f reflect.StructField) fieldTag {
	parts := strings.Split(f.Tag.Get("ch"), ",")
	t := fieldTag{name: parts[0], def: f.Tag.Get("def")}
	if e := f.Tag.Get("enum"); e != "" {
		t.enum = strings.Split(e, "|")
	}
	for _, p := range parts[1:] {
		switch p {
		case "req":
			t.req = true
		case "opt":
			t.opt = true
		case "custom":
			t.custom = true
		case "path":
			t.path = true
		case "usize":
			t.usize = true
		case "skipfalse":
			t.skipFalse = true
		case "since53":
			t.since53 = true
		default:
			t.old, _ = strings.CutPrefix(p, "old=")
		}
	}
	return t
}

// slot is one key an object may have.
type slot struct {
	tag  fieldTag
	v    reflect.Value
	flat bool
	seen bool
}

// slots lists the keys of a struct, those of embedded structs included.
func slots(v reflect.Value, flat bool) []*slot {
	var out []*slot
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			out = append(out, slots(v.Field(i), true)...)
			continue
		}
		out = append(out, &slot{tag: parseTag(f), v: v.Field(i), flat: flat})
	}
	return out
}

// expects names what a field wants, in serde's words.
func expects(v reflect.Value, tag fieldTag) string {
	t := v.Type()
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "a boolean"
	case reflect.Slice:
		return "a sequence"
	case reflect.Struct:
		return "struct " + strings.NewReplacer("VM", "Vm", "CPU", "Cpu").Replace(t.Name())
	case reflect.String:
		if tag.path {
			return "path string"
		}
		if tag.enum != nil {
			return "string or map"
		}
		return "a string"
	case reflect.Uint64:
		if tag.usize {
			return "usize"
		}
		return "u64"
	case reflect.Int32:
		return "i32"
	default:
		return "u" + strconv.Itoa(t.Bits())
	}
}

func setDefault(s *slot) {
	switch {
	case s.tag.def != "" && s.v.Kind() == reflect.Bool:
		s.v.SetBool(s.tag.def == "true")
	case s.tag.def != "" && s.v.Kind() == reflect.String:
		s.v.SetString(s.tag.def)
	case s.tag.def != "":
		n, _ := strconv.ParseUint(s.tag.def, 10, 64)
		s.v.SetUint(n)
	case s.tag.name == "mac":
		s.v.SetString(randomMAC())
	case s.v.Kind() == reflect.Slice && !s.tag.opt:
		s.v.Set(reflect.MakeSlice(s.v.Type(), 0, 0))
	}
}

// defaults fills a struct as if it had been read from an empty object. The top level starts from
// defaultVMConfig instead, whose parts have defaults of their own.
func defaults(v reflect.Value, all []*slot) {
	if v.Type() == reflect.TypeFor[VMConfig]() {
		v.Set(reflect.ValueOf(defaultVMConfig()))
		return
	}
	for _, s := range all {
		setDefault(s)
	}
}

func (d *decoder) object(v reflect.Value) error {
	if d.peek() != '{' {
		return d.refuse(v, fieldTag{})
	}
	d.pos++
	all := slots(v, false)
	defaults(v, all)
	// Values of flattened parts are buffered by serde and looked at when the object ends.
	var late error
	for first := true; ; first = false {
		done, err := d.nextKey(first)
		if err != nil {
			return err
		}
		if done {
			break
		}
		if err := d.member(all, &late); err != nil {
			return err
		}
	}
	if late != nil {
		return d.error("%s", late)
	}
	for _, s := range all {
		if s.tag.req && !s.seen {
			return d.error("missing field `%s`", s.tag.name)
		}
	}
	return nil
}

// nextKey moves to the next key and reports whether the object ended instead.
func (d *decoder) nextKey(first bool) (bool, error) {
	c := d.peek()
	switch {
	case c == '}':
		d.pos++
		return true, nil
	case c == 0:
		return false, d.error("EOF while parsing an object")
	case !first && c != ',':
		return false, d.peekError("expected `,` or `}`")
	case !first:
		d.pos++
		c = d.peek()
	}
	switch c {
	case '"':
		return false, nil
	case '}':
		return false, d.peekError("trailing comma")
	case 0:
		return false, d.error("EOF while parsing a value")
	default:
		return false, d.peekError("key must be a string")
	}
}

func (d *decoder) member(all []*slot, late *error) error {
	key, err := d.str()
	if err != nil {
		return err
	}
	s := d.find(all, key)
	if s != nil && s.seen {
		return d.error("duplicate field `%s`", s.tag.name)
	}
	switch d.peek() {
	case ':':
		d.pos++
	case 0:
		return d.error("EOF while parsing an object")
	default:
		return d.peekError("expected `:`")
	}
	if s == nil {
		return d.skip()
	}
	s.seen = true
	if !s.flat {
		return d.value(s.v, s.tag)
	}
	start := d.pos
	err = d.value(s.v, s.tag)
	if err == nil {
		return nil
	}
	var at *decodeError
	if *late == nil && errors.As(err, &at) {
		*late = errors.New(at.msg)
	}
	d.pos = start
	return d.skip()
}

// find looks a key up under the names this version knows.
func (d *decoder) find(all []*slot, key string) *slot {
	for _, s := range all {
		if s.tag.since53 && d.dialect < dialect53 {
			continue
		}
		if s.tag.old != "" && key == s.tag.old {
			return s
		}
		if s.tag.name == key && (s.tag.old == "" || d.dialect >= dialect53) {
			return s
		}
	}
	return nil
}

// skip reads a value nobody asked for; unknown fields are ignored silently.
func (d *decoder) skip() error {
	switch c := d.peek(); c {
	case '{':
		d.pos++
		for first := true; ; first = false {
			done, err := d.nextKey(first)
			if err != nil || done {
				return err
			}
			if err := d.member(nil, nil); err != nil {
				return err
			}
		}
	case '[':
		d.pos++
		return d.skipList()
	case '"':
		_, err := d.str()
		return err
	case 'n':
		return d.literal("null")
	case 0:
		return d.error("EOF while parsing a value")
	default:
		if c == 't' || c == 'f' {
			var b bool
			return d.scalar(reflect.ValueOf(&b).Elem(), fieldTag{})
		}
		start := d.pos
		for d.pos < len(d.buf) && strings.IndexByte("+-.eE0123456789", d.buf[d.pos]) >= 0 {
			d.pos++
		}
		if d.pos == start {
			return d.peekError("expected value")
		}
		return nil
	}
}

func (d *decoder) skipList() error {
	for first := true; ; first = false {
		switch c := d.peek(); {
		case c == 0:
			return d.error("EOF while parsing a list")
		case c == ']':
			d.pos++
			return nil
		case !first && c != ',':
			return d.peekError("expected `,` or `]`")
		case !first:
			d.pos++
		}
		if err := d.skip(); err != nil {
			return err
		}
	}
}
