// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package processtest_test

import (
	"strconv"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process/processtest"
)

func TestFakeConforms(t *testing.T) {
	defer goleak.VerifyNone(t)
	world := processtest.NewWorld()
	processtest.Conformance(t, processtest.Factory{
		New:  func(*testing.T) process.Supervisor { return processtest.NewFake(world) },
		Stay: []string{"stay"},
		Exit: func(code int) []string { return []string{"exit", strconv.Itoa(code)} },
	})
}

func TestRebootOfTheWorldLeavesNothing(t *testing.T) {
	world := processtest.NewWorld()
	fake := processtest.NewFake(world)
	defer fake.Close()
	p, err := fake.Start(t.Context(), process.Spec{Name: "vm", Marker: "m", Argv: []string{"stay"}})
	if err != nil {
		t.Fatal(err)
	}
	world.Reboot()
	<-p.Done()
	if got := world.Living(); len(got) != 0 {
		t.Errorf("living after reboot: %v", got)
	}
}

func TestIgnoredSignalsAreRecordedButDoNotEnd(t *testing.T) {
	world := processtest.NewWorld()
	fake := processtest.NewFake(world)
	defer fake.Close()
	p, err := fake.Start(t.Context(), process.Spec{Name: "vm", Marker: "m", Argv: []string{"stay"}})
	if err != nil {
		t.Fatal(err)
	}
	pid := p.Identity().PID
	world.Ignore(pid, syscall.SIGTERM)
	if err := p.Signal(t.Context(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := world.Signals(pid); len(got) != 1 || got[0] != syscall.SIGTERM {
		t.Errorf("signals %v, want SIGTERM", got)
	}
	world.Kill(pid, syscall.SIGKILL)
	<-p.Done()
	if got := p.Exit().Signal; got != "SIGKILL" {
		t.Errorf("ended by %q, want SIGKILL", got)
	}
}
