// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package qemu

import (
	"os"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func openTap(name string, _ int) ([]*os.File, error) {
	return nil, machine.Errorf(machine.Unimplemented, "tap %s: tap devices exist on Linux only", name)
}

func openVhost(int) []*os.File { return nil }

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// directFlag is none: macOS has another way, which QEMU takes by itself.
const directFlag = 0

func isUnsupported(error) bool { return false }
