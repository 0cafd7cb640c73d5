// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
)

// kindCodes is the one table from kinds of failure to gRPC codes.
var kindCodes = map[machine.Kind]codes.Code{
	machine.Unknown:            codes.Internal,
	machine.Invalid:            codes.InvalidArgument,
	machine.NotFound:           codes.NotFound,
	machine.AlreadyExists:      codes.AlreadyExists,
	machine.Conflict:           codes.Aborted,
	machine.Exhausted:          codes.ResourceExhausted,
	machine.FailedPrecondition: codes.FailedPrecondition,
	machine.Unavailable:        codes.Unavailable,
	machine.Unimplemented:      codes.Unimplemented,
}

// toStatus makes the gRPC error of a failure.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(kindCodes[machine.KindOf(err)], err.Error())
}

// duplicateOf returns the machine that stands in the way of a Create, nil if err is something else.
func duplicateOf(err error) *machine.Machine {
	var dup *store.DuplicateError
	if errors.As(err, &dup) {
		return dup.Existing
	}
	return nil
}
