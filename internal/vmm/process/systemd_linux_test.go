// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"context"
	"os"
	"strconv"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process/processtest"
)

func TestSystemdConforms(t *testing.T) {
	if _, err := os.Stat("/run/systemd/system"); err != nil || os.Geteuid() != 0 {
		t.Skip("SKIPPED LOUDLY: needs systemd as PID 1 and root; transient services of the real systemd are NOT tested")
	}
	processtest.Conformance(t, processtest.Factory{
		New: func(t *testing.T) process.Supervisor {
			s, err := process.NewSystemd(context.Background(), process.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Stay: sleeper(),
		Exit: func(code int) []string { return argv("exit", strconv.Itoa(code)) },
	})
}
