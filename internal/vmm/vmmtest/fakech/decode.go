// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decodeError is a JSON error in the words, and with the line and column, that serde_json gives:
// clients show these texts to people, and tests compare them.
type decodeError struct {
	msg       string
	line, col int
}

func (e *decodeError) Error() string {
	return fmt.Sprintf("%s at line %d column %d", e.msg, e.line, e.col)
}

// decoder reads JSON straight into tagged structs. It keeps the position of the last byte taken, so
// that errors point where serde_json's do.
type decoder struct {
	buf     []byte
	pos     int
	dialect dialect
}

// decodeJSON fills the struct dst points to from the whole of body.
func decodeJSON(d dialect, body []byte, dst any) error {
	dec := &decoder{buf: body, dialect: d}
	if err := dec.value(reflect.ValueOf(dst).Elem(), fieldTag{}); err != nil {
		return err
	}
	if dec.space(); dec.pos < len(dec.buf) {
		return dec.peekError("trailing characters")
	}
	return nil
}

func (d *decoder) errorAt(end int, format string, args ...any) error {
	line, start := 1, 0
	for i, c := range d.buf[:end] {
		if c == '\n' {
			line, start = line+1, i+1
		}
	}
	return &decodeError{msg: fmt.Sprintf(format, args...), line: line, col: end - start}
}

func (d *decoder) error(format string, args ...any) error { return d.errorAt(d.pos, format, args...) }

// peekError points at the byte that was looked at but not taken.
func (d *decoder) peekError(format string, args ...any) error {
	return d.errorAt(min(d.pos+1, len(d.buf)), format, args...)
}

func (d *decoder) space() {
	for d.pos < len(d.buf) && strings.IndexByte(" \t\r\n", d.buf[d.pos]) >= 0 {
		d.pos++
	}
}

// peek returns the next byte that is not white space, 0 at the end.
func (d *decoder) peek() byte {
	d.space()
	if d.pos == len(d.buf) {
		return 0
	}
	return d.buf[d.pos]
}

func (d *decoder) value(v reflect.Value, tag fieldTag) error {
	switch d.peek() {
	case 0:
		return d.error("EOF while parsing a value")
	case 'n':
		return d.null(v, tag)
	}
	if tag.opt && v.Kind() == reflect.Pointer {
		p := reflect.New(v.Type().Elem())
		if err := d.value(p.Elem(), tag); err != nil {
			return err
		}
		v.Set(p)
		return nil
	}
	switch v.Kind() {
	case reflect.Struct:
		return d.object(v)
	case reflect.Slice:
		return d.array(v, tag)
	default:
		return d.scalar(v, tag)
	}
}

func (d *decoder) null(v reflect.Value, tag fieldTag) error {
	if err := d.literal("null"); err != nil {
		return err
	}
	if tag.opt {
		v.SetZero()
		return nil
	}
	return d.error("invalid type: null, expected %s", expects(v, tag))
}

func (d *decoder) literal(word string) error {
	for i := range word {
		if d.pos == len(d.buf) {
			return d.error("EOF while parsing a value")
		}
		d.pos++
		if d.buf[d.pos-1] != word[i] {
			return d.error("expected ident")
		}
	}
	return nil
}

// scalar reads a string, number or boolean and refuses everything else in serde's words.
func (d *decoder) scalar(v reflect.Value, tag fieldTag) error {
	switch c := d.peek(); {
	case c == '{':
		return d.error("invalid type: map, expected %s", expects(v, tag))
	case c == '[':
		return d.error("invalid type: sequence, expected %s", expects(v, tag))
	case c == '"':
		s, err := d.str()
		if err != nil {
			return err
		}
		return d.setString(v, tag, s)
	case c == 't' || c == 'f':
		word := map[byte]string{'t': "true", 'f': "false"}[c]
		if err := d.literal(word); err != nil {
			return err
		}
		if v.Kind() != reflect.Bool {
			return d.error("invalid type: boolean `%s`, expected %s", word, expects(v, tag))
		}
		v.SetBool(c == 't')
		return nil
	case c == '-' || c >= '0' && c <= '9':
		return d.number(v, tag)
	default:
		return d.peekError("expected value")
	}
}

func (d *decoder) setString(v reflect.Value, tag fieldTag, s string) error {
	if v.Kind() != reflect.String {
		return d.error("invalid type: string %q, expected %s", s, expects(v, tag))
	}
	if tag.enum != nil && !contains(tag.enum, s) {
		return d.error("unknown variant `%s`, expected one of `%s`", s, strings.Join(tag.enum, "`, `"))
	}
	if tag.custom {
		if msg := checkCustom(tag.name, s); msg != "" {
			// A custom check runs after the value, so its error is placed behind a closing brace.
			if d.peek() == '}' {
				return d.peekError("%s", msg)
			}
			return d.error("%s", msg)
		}
		s = strings.ToLower(s)
	}
	v.SetString(s)
	return nil
}

func checkCustom(name, s string) string {
	if strings.HasSuffix(name, "mac") {
		if hw, err := net.ParseMAC(s); err != nil || len(hw) != 6 {
			return "The provided MAC address is invalid: parsing of " + s + " into a MAC address failed"
		}
		return ""
	}
	if _, err := netip.ParseAddr(s); err != nil {
		return "invalid IP address syntax"
	}
	return ""
}

func (d *decoder) number(v reflect.Value, tag fieldTag) error {
	start := d.pos
	for d.pos < len(d.buf) && strings.IndexByte("+-.eE0123456789", d.buf[d.pos]) >= 0 {
		d.pos++
	}
	text := string(d.buf[start:d.pos])
	if strings.ContainsAny(text, ".eE") {
		return d.error("invalid type: floating point `%s`, expected %s", text, expects(v, tag))
	}
	switch v.Kind() {
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if n, err := strconv.ParseUint(text, 10, v.Type().Bits()); err == nil {
			v.SetUint(n)
			return nil
		}
	case reflect.Int32:
		if n, err := strconv.ParseInt(text, 10, 32); err == nil {
			v.SetInt(n)
			return nil
		}
	default:
		return d.error("invalid type: integer `%s`, expected %s", text, expects(v, tag))
	}
	if len(text) > 20 {
		return d.error("invalid type: floating point `%s`, expected %s", text, expects(v, tag))
	}
	return d.error("invalid value: integer `%s`, expected %s", text, expects(v, tag))
}

func (d *decoder) array(v reflect.Value, tag fieldTag) error {
	if c := d.peek(); c != '[' {
		return d.refuse(v, tag)
	}
	d.pos++
	out := reflect.MakeSlice(v.Type(), 0, 0)
	for first := true; ; first = false {
		switch c := d.peek(); {
		case c == 0:
			return d.error("EOF while parsing a list")
		case c == ']':
			d.pos++
			v.Set(out)
			return nil
		case !first && c != ',':
			return d.peekError("expected `,` or `]`")
		case !first:
			d.pos++
			if d.peek() == ']' {
				return d.peekError("trailing comma")
			}
		}
		item := reflect.New(v.Type().Elem()).Elem()
		elem := tag
		elem.opt = false
		if err := d.value(item, elem); err != nil {
			return err
		}
		out = reflect.Append(out, item)
	}
}

// refuse reports a value of the wrong shape.
func (d *decoder) refuse(v reflect.Value, tag fieldTag) error {
	if d.peek() == '{' {
		return d.error("invalid type: map, expected %s", expects(v, tag))
	}
	if d.peek() == '[' {
		return d.error("invalid type: sequence, expected %s", expects(v, tag))
	}
	return d.scalar(v, tag)
}

func (d *decoder) str() (string, error) {
	d.pos++
	var b strings.Builder
	for {
		if d.pos == len(d.buf) {
			return "", d.error("EOF while parsing a string")
		}
		c := d.buf[d.pos]
		d.pos++
		switch {
		case c == '"':
			if !utf8.ValidString(b.String()) {
				return "", d.error("invalid unicode code point")
			}
			return b.String(), nil
		case c == '\\':
			if err := d.escape(&b); err != nil {
				return "", err
			}
		case c < 0x20:
			return "", d.error("control character (\\u0000-\\u001F) found while parsing a string")
		default:
			b.WriteByte(c)
		}
	}
}

func (d *decoder) escape(b *strings.Builder) error {
	if d.pos == len(d.buf) {
		return d.error("EOF while parsing a string")
	}
	c := d.buf[d.pos]
	d.pos++
	if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
		b.WriteByte("\"\\/\b\f\n\r\t"[i])
		return nil
	}
	if c != 'u' {
		return d.error("invalid escape")
	}
	r, err := d.hex4()
	if err != nil {
		return err
	}
	if r >= 0xd800 && r < 0xdc00 && strings.HasPrefix(string(d.buf[d.pos:]), `\u`) {
		d.pos += 2
		low, err := d.hex4()
		if err != nil {
			return err
		}
		r = 0x10000 + (r-0xd800)<<10 + (low - 0xdc00)
	}
	b.WriteRune(r)
	return nil
}

func (d *decoder) hex4() (rune, error) {
	if d.pos+4 > len(d.buf) {
		d.pos = len(d.buf)
		return 0, d.error("EOF while parsing a string")
	}
	n, err := strconv.ParseUint(string(d.buf[d.pos:d.pos+4]), 16, 32)
	d.pos += 4
	if err != nil {
		return 0, d.error("invalid escape")
	}
	return rune(n), nil
}

func contains(list []string, s string) bool {
	for _, item := range list {
		if item == s {
			return true
		}
	}
	return false
}
