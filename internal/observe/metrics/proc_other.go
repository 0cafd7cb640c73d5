// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package metrics

import (
	"errors"
	"io/fs"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// newProcessReader knows nothing: there is no /proc.
func newProcessReader() func(machine.ProcessIdentity) (Process, error) {
	return func(machine.ProcessIdentity) (Process, error) {
		return Process{}, errors.ErrUnsupported
	}
}

func allocated(info fs.FileInfo) int64 { return info.Size() }
