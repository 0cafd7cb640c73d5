// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
)

// What a VMM can answer. An *Error wraps at most one of them.
var (
	ErrNotCreated     = errors.New("no VM is defined")
	ErrAlreadyCreated = errors.New("a VM is defined already")
	ErrNotRunning     = errors.New("the VM does not run")
	ErrInvalidConfig  = errors.New("the configuration is invalid")
	ErrDuplicateID    = errors.New("the device's id is taken")
	ErrRemovalPending = errors.New("the guest has not let go of the device of that id")
	ErrUnknownDevice  = errors.New("no device has that id")
	ErrNotRemovable   = errors.New("a device of that type cannot be removed")
	ErrNoSlot         = errors.New("no PCI slot is free")
	ErrLocked         = errors.New("another process has locked the disk")
	ErrMissingFile    = errors.New("a file is missing")
	ErrNoPermission   = errors.New("the VMM may not open a file")
	ErrTapGone        = errors.New("the tap device behind a descriptor is gone")
	ErrTapBusy        = errors.New("the tap device or file is in use")
	ErrVhostUser      = errors.New("the vhost-user server does not answer")
	ErrSizeMismatch   = errors.New("the block device has another size")
	ErrNoResize       = errors.New("the image cannot be resized")
	ErrImageType      = errors.New("the disk's image has another type")
	ErrSocketInUse    = errors.New("a socket's path is in use")
	ErrBusy           = errors.New("the VMM is busy with an earlier request")
	ErrBadRequest     = errors.New("the VMM does not understand the request")
	ErrUnknownCall    = errors.New("the VMM does not know the call")
	ErrNoConnection   = errors.New("the VMM has no connection left")
	ErrMigrating      = errors.New("the VM is being migrated")
	ErrNoMemory       = errors.New("the host has no memory for the guest")
	ErrWrongState     = errors.New("the VM is not in the state for this")
)

var (
	// ErrUnavailable means that the VMM could not be asked: nobody listens, the connection broke, or no answer came
	// in time. It says nothing about the VM; the request may or may not have been carried out.
	ErrUnavailable = errors.New("the VMM cannot be asked")
	// ErrBodyTooLarge means that a request was not sent since the server would not take it.
	ErrBodyTooLarge = fmt.Errorf("more than the %d bytes that the VMM takes", maxRequestBody)

	// errLostReply is how a connection ends when the VMM exits before it answers.
	errLostReply = errors.New("the connection ended without an answer")
)

// Error is an answer that refuses a call.
type Error struct {
	Call   string   // "vm.boot"
	Status int      // HTTP status; differs between versions for the same failure
	Chain  []string // causes, outermost first
	Kind   error    // one of this package's, nil if the text is not known
}

// Error returns the call and the chain of causes.
func (e *Error) Error() string {
	if len(e.Chain) == 0 {
		return fmt.Sprintf("%s: HTTP status %d", e.Call, e.Status)
	}
	return e.Call + ": " + strings.Join(e.Chain, ": ")
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// failure makes an error of an answer.
func failure(name string, status int, body []byte) error {
	chain := errorChain(body)
	return &Error{Call: name, Status: status, Chain: chain, Kind: kindOf(status, chain)}
}

// errorChain reads the three forms of error bodies: an array of strings (v47 and later), an object from the HTTP
// library below the API, and plain text.
func errorChain(body []byte) []string {
	var chain []string
	if json.Unmarshal(body, &chain) == nil {
		return chain
	}
	var object struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &object) == nil && object.Error != "" {
		return []string{object.Error}
	}
	text := strings.TrimSpace(string(body))
	if text == "" {
		return nil
	}
	const most = 1024
	return []string{text[:min(len(text), most)]}
}

// errorText maps a piece of an answer to its meaning. The pieces are looked for in this order, the innermost cause
// of the chain first.
type errorText struct {
	text string
	kind error
}

// errorTexts returns the texts by which failures are told apart, since statuses do not: up to v52 nearly all is
// 500, v53 adds 404 for a VM that is not created, and later versions 400 and 409. All were seen in answers of v53
// and of a snapshot after it, but for those marked with the source file that they were read in.
func errorTexts() []errorText {
	return []errorText{
		{"VM is not created", ErrNotCreated},
		{"VM config is missing", ErrNotCreated},
		{"VM is already created", ErrAlreadyCreated},
		{"VM is not running", ErrNotRunning},
		{"VM is currently migrating", ErrMigrating}, // vmm/src/vm.rs
		{"Invalid transition: InvalidStateTransition", ErrWrongState},
		{"Invalid identifier as it is not unique", ErrRemovalPending},
		{"is not unique", ErrDuplicateID},
		{"Duplicated device path", ErrDuplicateID}, // vmm/src/config.rs
		{"Failed to find device corresponding to the given identifier", ErrUnknownDevice},
		{"No device with id", ErrUnknownDevice},
		{"Not allowed to remove this type of device", ErrNotRemovable},
		{"Failed to find an available PCI device ID", ErrNoSlot},
		{"Could not find an available device slot", ErrNoSlot},
		{"The file is already locked", ErrLocked},
		{"Error locking disk images", ErrLocked},
		{"Failed to get Write lock for disk image", ErrLocked},
		{"Cannot lock images of all block devices", ErrLocked},
		{"Disk image type does not match", ErrImageType},
		{"vhost-user: can't connect to peer", ErrVhostUser},
		{"does not match requested size", ErrSizeMismatch},
		{"esize not supported with backing file", ErrNoResize}, // block/src/formats/qcow
		{"Address already in use (os error 98)", ErrSocketInUse},
		{"File descriptor in bad state (os error 77)", ErrTapGone},
		{"resource busy (os error 16)", ErrTapBusy},
		{"Permission denied (os error 13)", ErrNoPermission},
		{"No such file or directory (os error 2)", ErrMissingFile},
		{"Cannot allocate memory (os error 12)", ErrNoMemory},
		{"Failed to validate config", ErrInvalidConfig},
		{"Payload configuration is not bootable", ErrInvalidConfig},
		{"Failed to deserialize JSON", ErrBadRequest},
		{"Too many open connections", ErrNoConnection},
		{"Too Many Requests", ErrBusy},
		{"Bad Request", ErrBadRequest},
		{"Not Found", ErrUnknownCall},
	}
}

func kindOf(status int, chain []string) error {
	for i := len(chain) - 1; i >= 0; i-- {
		for _, t := range errorTexts() {
			if strings.Contains(chain[i], t.text) {
				return t.kind
			}
		}
	}
	// These two mean the same with any text.
	switch status {
	case http.StatusTooManyRequests:
		return ErrBusy
	case http.StatusServiceUnavailable:
		return ErrNoConnection
	}
	return nil
}

// unavailable wraps a failure to ask. The cause stays reachable, so that a caller can tell its own context's end.
func unavailable(name string, cause error) error {
	if lostReply(cause) {
		return fmt.Errorf("%s: %w: %w: %w", name, ErrUnavailable, errLostReply, cause)
	}
	return fmt.Errorf("%s: %w: %w", name, ErrUnavailable, cause)
}

func lostReply(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
