// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config/document"
)

// Type is how a value is written.
type Type string

// The types of fields.
const (
	TypeString   Type = "string"
	TypePath     Type = "path"
	TypeInt      Type = "integer"
	TypeBool     Type = "true or false"
	TypeRatio    Type = "number"
	TypeBytes    Type = "size"
	TypeAmount   Type = "size or percent"
	TypeDuration Type = "duration"
	TypeAddress  Type = "host:port"
	TypeList     Type = "list of strings"
	TypeClasses  Type = "list of MachineClass"
	TypeNetworks Type = "mapping of networks"
)

// IsList is true for types that hold several values.
func (t Type) IsList() bool { return t == TypeList || t == TypeClasses || t == TypeNetworks }

// accepts says which notations of YAML fit. A duration without a unit and a number in quotes
// are not let through: both are more often a slip than meant. A group is often known by number only.
func (f Field) accepts(k document.Kind) bool {
	if f.Path == "iri.group" && k == document.Int {
		return true
	}
	switch f.Type {
	case TypeInt:
		return k == document.Int
	case TypeBool:
		return k == document.Bool
	case TypeRatio:
		return k == document.Int || k == document.Float
	case TypeBytes, TypeAmount:
		return k == document.Int || k == document.String
	default:
		return k == document.String
	}
}

// example completes "want a …".
func (t Type) example() string {
	switch t {
	case TypeDuration:
		return "a duration such as 30s or 5m"
	case TypeBytes:
		return "a size such as 512Mi"
	case TypeAmount:
		return "a size such as 50Gi or a share such as 20%"
	case TypeInt:
		return "an integer"
	case TypeBool:
		return "true or false"
	case TypeRatio:
		return "a number"
	case TypeList:
		return "a list of strings"
	case TypeClasses:
		return "a list of MachineClass objects"
	case TypePath:
		return "an absolute path"
	case TypeAddress:
		return "an address such as 127.0.0.1:8080"
	default:
		return "a string"
	}
}

// valueError is a bad value with what to write instead.
type valueError struct {
	message, suggestion string
}

func (e *valueError) Error() string { return e.message }

func badValue(suggestion, format string, args ...any) error {
	return &valueError{message: fmt.Sprintf(format, args...), suggestion: suggestion}
}

// codec moves a value between its place in Config and text. A scalar is exactly one text.
type codec interface {
	set(c *Config, texts []string) error
	get(c *Config) []string
}

type scalar[T any] struct {
	place  func(*Config) *T
	parse  func(string) (T, error)
	format func(T) string
}

func (s scalar[T]) set(c *Config, texts []string) error {
	v, err := s.parse(texts[len(texts)-1])
	if err != nil {
		return err
	}
	*s.place(c) = v
	return nil
}

func (s scalar[T]) get(c *Config) []string { return []string{s.format(*s.place(c))} }

type list[T any] struct {
	place  func(*Config) *[]T
	parse  func(string) (T, error)
	format func(T) string
}

func (l list[T]) set(c *Config, texts []string) error {
	var out []T
	for _, text := range texts {
		v, err := l.parse(text)
		if err != nil {
			return err
		}
		out = append(out, v)
	}
	*l.place(c) = out
	return nil
}

func (l list[T]) get(c *Config) []string {
	var out []string
	for _, v := range *l.place(c) {
		out = append(out, l.format(v))
	}
	return out
}

func same(s string) string { return s }

func text(place func(*Config) *string, check func(string) error) codec {
	return scalar[string]{place, func(s string) (string, error) { return s, check(s) }, same}
}

func choice(place func(*Config) *string, allowed []string) codec {
	return text(place, func(s string) error {
		for _, a := range allowed {
			if s == a {
				return nil
			}
		}
		suggestion := ""
		if near := document.Nearest(s, allowed); near != "" {
			suggestion = fmt.Sprintf("did you mean %s?", near)
		}
		return badValue(suggestion, "%q is none of %s", s, strings.Join(allowed, ", "))
	})
}

func integer(place func(*Config) *int, lo, hi int) codec {
	return scalar[int]{place, func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil {
			return 0, badValue("", "%q is not a decimal integer", s)
		}
		return n, within(n, lo, hi, strconv.Itoa)
	}, strconv.Itoa}
}

func ratio(place func(*Config) *float64, lo, hi float64) codec {
	format := func(f float64) string {
		s := strconv.FormatFloat(f, 'f', -1, 64)
		if f == math.Trunc(f) {
			s += ".0"
		}
		return s
	}
	return scalar[float64]{place, func(s string) (float64, error) {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || math.IsNaN(f) {
			return 0, badValue("", "%q is not a number", s)
		}
		return f, within(f, lo, hi, format)
	}, format}
}

func bytesValue(place func(*Config) *int64, lo, hi int64) codec {
	return scalar[int64]{place, func(s string) (int64, error) {
		n, err := document.ParseBytes(s)
		if err != nil {
			return 0, badValue(document.SuggestQuantity(s), "%v", err)
		}
		return n, within(n, lo, hi, document.FormatBytes)
	}, document.FormatBytes}
}

// amount is a size or a share of the file system. Bytes may be lo and more, percent 1 to hi.
func amount(place func(*Config) *document.Amount, lo int64, hi int) codec {
	return scalar[document.Amount]{place, func(s string) (document.Amount, error) {
		a, err := document.ParseAmount(s)
		switch {
		case s == "":
			return a, badValue("remove the key to get the default", "the value is empty")
		case err != nil:
			return a, badValue(document.SuggestQuantity(s), "%v", err)
		case strings.HasSuffix(s, "%"):
			return a, within(a.Percent, 1, hi, func(n int) string { return strconv.Itoa(n) + "%" })
		}
		return a, within(a.Bytes, lo, math.MaxInt64, document.FormatBytes)
	}, document.Amount.String}
}

// optional is an amount that may be left empty.
func optional(place func(*Config) *document.Amount, lo int64, hi int) codec {
	needed := amount(place, lo, hi)
	return scalar[document.Amount]{place, func(s string) (document.Amount, error) {
		var c Config
		if s == "" {
			return document.Amount{}, nil
		}
		err := needed.set(&c, []string{s})
		return *place(&c), err
	}, document.Amount.String}
}

func duration(place func(*Config) *time.Duration, lo, hi time.Duration) codec {
	return scalar[time.Duration]{place, func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil {
			suggestion := ""
			if _, err := strconv.ParseUint(s, 10, 31); err == nil {
				suggestion = fmt.Sprintf("write %ss if seconds are meant", s)
			}
			return 0, badValue(suggestion, "%q is not a duration such as 30s or 5m", s)
		}
		return d, within(d, lo, hi, formatDuration)
	}, formatDuration}
}

// formatDuration leaves out the zeros of Go's "1m0s".
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func within[T int | int64 | float64 | time.Duration](v, lo, hi T, format func(T) string) error {
	if v < lo {
		return badValue("", "%s is below the least value of %s", format(v), format(lo))
	}
	if v > hi {
		return badValue("", "%s is above the greatest value of %s", format(v), format(hi))
	}
	return nil
}

func stringList(place func(*Config) *[]string, check func(string) error) codec {
	return list[string]{place, func(s string) (string, error) { return s, check(s) }, same}
}

func forwardList(place func(*Config) *[]Forward) codec {
	return list[Forward]{place, ParseForward, Forward.String}
}

func classList(place func(*Config) *[]class.Class) codec {
	return list[class.Class]{place, class.ParseFlag, class.Class.String}
}

// absolute checks a path. The empty path passes: whether one is needed is the field's matter.
func absolute(path string) error {
	switch {
	case path == "":
		return nil
	case strings.HasPrefix(path, "unix://"):
		return badValue("write "+strings.TrimPrefix(path, "unix://"), "%q is a URL, want a path", path)
	case !filepath.IsAbs(path):
		return badValue("", "%q is not an absolute path", path)
	case !utf8.ValidString(path):
		return badValue("", "%q is not UTF-8", path)
	case strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return badValue("", "%q holds a control character", path)
	case filepath.Clean(path) != path:
		return badValue("write "+filepath.Clean(path), "%q is not in its shortest form", path)
	}
	return nil
}

func needed(check func(string) error) func(string) error {
	return func(s string) error {
		if s == "" {
			return badValue("remove the key to get the default", "the value is empty")
		}
		return check(s)
	}
}
