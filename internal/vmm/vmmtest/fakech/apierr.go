// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bytes"
	"errors"
	"syscall"
)

// errKind decides the HTTP status of a failure in the newer dialects.
type errKind int

const (
	kindInternal   errKind = iota
	kindNotCreated         // 404 from v53 on
	kindInvalid            // 400 on main
	kindConflict           // 409 on main
	kindNoDevice           // 404 on main
	kindTooMany            // 429 in all versions
)

// chainError is an error with its causes as the list of texts the API answers.
type chainError struct {
	kind  errKind
	texts []string
}

func (e *chainError) Error() string {
	var b bytes.Buffer
	for i, t := range e.texts {
		if i > 0 {
			b.WriteString(": ")
		}
		b.WriteString(t)
	}
	return b.String()
}

func failed(texts ...string) *chainError { return &chainError{texts: texts} }

func failedAs(kind errKind, texts ...string) *chainError {
	return &chainError{kind: kind, texts: texts}
}

// under puts texts in front of a chain.
func (e *chainError) under(texts ...string) *chainError {
	return &chainError{kind: e.kind, texts: append(append([]string{}, texts...), e.texts...)}
}

// The failures that several calls share.
func errNotCreated() *chainError     { return failedAs(kindNotCreated, "VM is not created") }
func errMissingConfig() *chainError  { return failedAs(kindNotCreated, "VM config is missing") }
func errNotRunning() *chainError     { return failed("VM is not running") }
func errAlreadyCreated() *chainError { return failed("VM is already created") }
func errUnknownDevice(id string) *chainError {
	return failedAs(kindNoDevice, "Error from device manager",
		"Failed to find device corresponding to the given identifier: "+id)
}

// osText renders an error of the kernel as Rust does.
func osText(err error) string {
	var no syscall.Errno
	if !errors.As(err, &no) {
		return err.Error()
	}
	return rustErrno(no)
}

// status maps a failure to the status code of the version.
func (d dialect) status(e *chainError) int {
	switch {
	case e.kind == kindTooMany:
		return 429
	case e.kind == kindNotCreated && d >= dialect53:
		return 404
	case d < dialect54:
		return 500
	case e.kind == kindInvalid:
		return 400
	case e.kind == kindConflict:
		return 409
	case e.kind == kindNoDevice:
		return 404
	default:
		return 500
	}
}

// errorBody renders a chain as a JSON array of strings.
func errorBody(texts ...string) []byte {
	var b bytes.Buffer
	b.WriteByte('[')
	for i, t := range texts {
		if i > 0 {
			b.WriteByte(',')
		}
		writeString(&b, t)
	}
	b.WriteByte(']')
	return b.Bytes()
}
