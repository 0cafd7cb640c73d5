// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"errors"
	"fmt"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

// meaning is what an answer of a VMM means to the caller.
type meaning struct {
	is   error
	kind machine.Kind
}

// meanings returns the table of them. What is missing is machine.Unknown.
func meanings() []meaning {
	return []meaning{
		{api.ErrUnavailable, machine.Unavailable},
		{api.ErrNoConnection, machine.Unavailable},
		{api.ErrBusy, machine.Unavailable},
		{api.ErrMigrating, machine.Unavailable},
		{api.ErrVhostUser, machine.Unavailable},
		{api.ErrNoSlot, machine.Exhausted},
		{api.ErrNoMemory, machine.Exhausted},
		{api.ErrInvalidConfig, machine.Invalid},
		{api.ErrBadRequest, machine.Invalid},
		{api.ErrBodyTooLarge, machine.Invalid},
		{api.ErrImageType, machine.Invalid},
		{api.ErrDuplicateID, machine.AlreadyExists},
		{api.ErrUnknownDevice, machine.NotFound},
		{api.ErrUnknownCall, machine.Unimplemented},
		{api.ErrNotCreated, machine.FailedPrecondition},
		{api.ErrAlreadyCreated, machine.FailedPrecondition},
		{api.ErrNotRunning, machine.FailedPrecondition},
		{api.ErrWrongState, machine.FailedPrecondition},
		{api.ErrNotRemovable, machine.FailedPrecondition},
		{api.ErrMissingFile, machine.FailedPrecondition}, // of a volume or a kernel: the machine itself is there
		{api.ErrLocked, machine.FailedPrecondition},
		{api.ErrSocketInUse, machine.FailedPrecondition},
		{api.ErrRemovalPending, machine.FailedPrecondition},
		{api.ErrNoPermission, machine.FailedPrecondition},
		{api.ErrTapGone, machine.FailedPrecondition},
		{api.ErrTapBusy, machine.FailedPrecondition},
		{api.ErrSizeMismatch, machine.FailedPrecondition},
		{api.ErrNoResize, machine.Unimplemented},
	}
}

// fail says what was being done and gives an error its kind, unless it has one.
func fail(doing string, err error) error {
	if err == nil || errors.Is(err, vmm.ErrIdentity) || machine.KindOf(err) != machine.Unknown {
		return err
	}
	for _, k := range meanings() {
		if errors.Is(err, k.is) {
			return machine.Wrap(k.kind, err, doing)
		}
	}
	return machine.Wrap(machine.Unknown, err, doing)
}

// alsoFailed adds that the cleaning up after err failed too. What err is stays what it was.
func alsoFailed(err, cleaning error) error {
	if cleaning == nil {
		return err
	}
	return fmt.Errorf("%w (cleaning up after that failed: %s)", err, cleaning.Error())
}
