// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// Failures other than a Refusal. All are of kind machine.Unavailable: they say nothing about the guest, which may be
// booting, may have no agent, or may be stuck.
var (
	// ErrNoAgent means that nobody who speaks the protocol is at the other end: the channel could not be opened or
	// ended at once, or nothing there answered guest-sync-delimited. When that is for silence, the error is also
	// ErrTimeout.
	ErrNoAgent = errors.New("no guest agent answers")
	// ErrTimeout means that the time of the call is over. Whether the agent has done what it was told is unknown.
	ErrTimeout = errors.New("the guest agent did not answer in time")
	// ErrProtocol means that the agent answered something that is no answer, or ended in the middle of one.
	ErrProtocol = errors.New("the guest agent broke the protocol")
)

// Refusal is the agent's own answer that it will not or cannot. Its kind is machine.Unimplemented for a command that
// the agent does not know or that is switched off in it, else machine.FailedPrecondition.
type Refusal struct {
	Command string // "guest-shutdown"
	Class   string // "CommandNotFound", "GenericError"; printable, at most 64 bytes
	Desc    string // for a person; printable, at most 256 bytes
}

// Error returns command, class and description.
func (r *Refusal) Error() string {
	return fmt.Sprintf("the guest agent refused %s: %s: %s", r.Command, r.Class, r.Desc)
}

func refused(command, class, desc string) error {
	r := &Refusal{Command: command, Class: printable(class, maxName), Desc: printable(desc, maxText)}
	kind := machine.FailedPrecondition
	if r.Class == "CommandNotFound" || r.Class == "CommandDisabled" {
		kind = machine.Unimplemented
	}
	return machine.Errorf(kind, "%w", r)
}

// failed classifies a failure of a call whose own context is ctx, made from the caller's parent: the caller's own wish,
// the time, or as.
func failed(parent, ctx context.Context, doing string, as, err error) error {
	switch {
	case parent.Err() != nil && !errors.Is(parent.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("%w: %w", parent.Err(), err)
	case ctx.Err() != nil && errors.Is(as, ErrNoAgent):
		err = fmt.Errorf("%w: %w: %w", ErrNoAgent, ErrTimeout, err)
	case ctx.Err() != nil:
		err = fmt.Errorf("%w: %w", ErrTimeout, err)
	case !errors.Is(err, as):
		err = fmt.Errorf("%w: %w", as, err)
	}
	return machine.Wrap(machine.Unavailable, err, doing)
}
