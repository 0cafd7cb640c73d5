// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package tap makes, finds and removes the persistent tap devices that guests' network interfaces hang on. It exists so
// that every plugin treats them alike: one name, one mark of the owner, no addresses of the host on them. It works in
// the daemon's network namespace, needs CAP_NET_ADMIN, and must never change or remove a device of another owner.
package tap

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
)

// Errors to look for with errors.Is.
var (
	// ErrNotOwner says that a device of the name exists and belongs to somebody else.
	ErrNotOwner = errors.New("the device belongs to somebody else")
	// ErrLimit says that the kernel has no room for another tap, or not for so many queues.
	ErrLimit = errors.New("no room for another tap device")
)

const (
	// MaxQueues is how many pairs of queues a tap gets at most: each costs the VMM a descriptor, and more than these do
	// not make a guest's traffic faster. The kernel's own limit is 256.
	MaxQueues = 16
	// MinMTU is what IPv4 asks of every link.
	MinMTU = 68
	// MaxMTU is what the kernel lets a tap have.
	MaxMTU = 65521

	prefix     = "chp"
	maxOwner   = 255 // bytes of a device's alias
	maxTapName = 15
)

// Name is the name of an interface's tap: "chp" and 11 hex digits, the 15 bytes less one that Linux allows.
func Name(machineID, nic string) string {
	sum := sha256.Sum256([]byte("tap\x00" + machineID + "\x00" + nic))
	return prefix + hex.EncodeToString(sum[:])[:11]
}

// Named reports whether a device's name could be one that Name made.
func Named(device string) bool {
	digits, ok := strings.CutPrefix(device, prefix)
	return ok && len(digits) == 11 && strings.Trim(digits, "0123456789abcdef") == ""
}

// Spec is how a tap should be.
type Spec struct {
	Name  string
	Owner string // kept in the device's alias, where "ip link" shows it
	// Queues are pairs of queues; more than one make it a multi-queue tap. At most MaxQueues.
	Queues int
	MTU    int  // 0 = leave as it is, at first 1500
	UID    *int // user that may open it; nil = only who has CAP_NET_ADMIN
}

// Device is a tap as it is.
type Device struct {
	Index      int
	Name       string
	Owner      string // "" = not marked
	MultiQueue bool
	MTU        int
	Master     int // index of the bridge it is a port of, 0 = none
	Up         bool
	InUse      bool // a VMM holds it open
}

// Host is where taps are: Kernel, or something imaginary in tests.
type Host interface {
	// Ensure makes the tap, up and without any address, and marks it as owner's. Idempotent. A tap that is in use keeps
	// its queues, whatever Spec says. ErrNotOwner, ErrLimit.
	Ensure(ctx context.Context, s Spec) (Device, error)
	// List returns the devices whose names could be Name's.
	List(ctx context.Context) ([]Device, error)
	// Remove removes the tap; nil if there is none, ErrNotOwner if it is another owner's.
	Remove(ctx context.Context, name, owner string) error
}

func (s Spec) check() error {
	switch {
	case s.Name == "" || len(s.Name) > maxTapName:
		return errors.New("tap: the name has to have 1 to 15 bytes")
	case s.Owner == "" || len(s.Owner) > maxOwner:
		return errors.New("tap: the owner has to have 1 to 255 bytes")
	case s.MTU != 0 && (s.MTU < MinMTU || s.MTU > MaxMTU):
		return errors.New("tap: the MTU has to be between 68 and 65521")
	}
	return nil
}
