// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
)

// Kind says what sort of failure an error is. Each kind maps to one gRPC code, in one table of package iriserver.
type Kind int

// The kinds of failure.
const (
	Unknown            Kind = iota // not classified
	Invalid                        // the request can never succeed as it is; Field names what is wrong
	NotFound                       // the named object does not exist
	AlreadyExists                  // an object of that identity exists
	Conflict                       // somebody else changed the object meanwhile; ask again and retry
	Exhausted                      // a limit is reached: capacity, disk space, slots
	FailedPrecondition             // the object is not in a state in which this is possible
	Unavailable                    // could not be asked or done now; says nothing about the object; retry
	Unimplemented                  // not possible with this build, driver or plugin
)

var kindNames = [...]string{
	"unknown", "invalid", "not found", "already exists", "conflict", "exhausted", "failed precondition",
	"unavailable", "unimplemented",
}

// String returns the kind in words.
func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return kindNames[Unknown]
	}
	return kindNames[k]
}

// Error is a failure of a known kind.
type Error struct {
	Kind    Kind
	Field   string // path of the offending field in the request, such as "spec.volumes[1].name"; may be empty
	Message string // for a person; never holds secrets
	Err     error  // cause, told after Message; may be nil

	cause error // cause that Message tells already
}

// Error returns field, message and cause, joined by colons.
func (e *Error) Error() string {
	s := e.Message
	if e.Field != "" {
		s = e.Field + ": " + s
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error {
	if e.Err != nil {
		return e.Err
	}
	return e.cause
}

// Errorf makes an error of a kind. A %w verb is honoured.
func Errorf(kind Kind, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Message: err.Error(), cause: err}
}

// Wrap adds a kind and a verb phrase ("open store") to a cause; nil stays nil.
func Wrap(kind Kind, err error, doing string) error {
	if err == nil {
		return nil
	}
	return &Error{Kind: kind, Message: doing, Err: err}
}

// InvalidField makes an Invalid error that names the offending field.
func InvalidField(field, format string, args ...any) error {
	return &Error{Kind: Invalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// KindOf returns the kind of the outermost classified error in err's chain, Unknown if there is none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Unknown
}

// IsKind reports whether err is of that kind.
func IsKind(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }
