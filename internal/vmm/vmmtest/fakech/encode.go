// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
)

// encodeConfig writes a tagged struct as the version's vm.info does: v53 leaves unset options out,
// v52 writes them as null and knows fewer and older names.
func encodeConfig(d dialect, v any) []byte {
	var b bytes.Buffer
	encodeValue(d, &b, reflect.ValueOf(v))
	return b.Bytes()
}

func encodeValue(d dialect, b *bytes.Buffer, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			b.WriteString("null")
			return
		}
		encodeValue(d, b, v.Elem())
	case reflect.Struct:
		encodeObject(d, b, v)
	case reflect.Slice:
		encodeList(d, b, v)
	case reflect.String:
		writeString(b, v.String())
	case reflect.Bool:
		b.WriteString(strconv.FormatBool(v.Bool()))
	case reflect.Int32:
		b.WriteString(strconv.FormatInt(v.Int(), 10))
	default:
		b.WriteString(strconv.FormatUint(v.Uint(), 10))
	}
}

func encodeList(d dialect, b *bytes.Buffer, v reflect.Value) {
	b.WriteByte('[')
	for i := range v.Len() {
		if i > 0 {
			b.WriteByte(',')
		}
		encodeValue(d, b, v.Index(i))
	}
	b.WriteByte(']')
}

func encodeObject(d dialect, b *bytes.Buffer, v reflect.Value) {
	b.WriteByte('{')
	first := true
	for _, s := range slots(v, false) {
		unset := s.tag.opt && s.v.IsNil()
		if s.tag.since53 && d < dialect53 || unset && d >= dialect53 || s.tag.skipFalse && !s.v.Bool() {
			continue
		}
		name := s.tag.name
		if s.tag.old != "" && d < dialect53 {
			name = s.tag.old
		}
		if !first {
			b.WriteByte(',')
		}
		first = false
		writeString(b, name)
		b.WriteByte(':')
		if unset {
			b.WriteString("null")
			continue
		}
		encodeValue(d, b, s.v)
	}
	b.WriteByte('}')
}

// writeString escapes as serde_json does: no HTML escaping.
func writeString(b *bytes.Buffer, s string) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	// Encoding a string into memory cannot fail; the encoder's closing newline is cut off.
	_ = enc.Encode(s)
	b.Truncate(b.Len() - 1)
}
