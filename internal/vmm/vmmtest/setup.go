// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmmtest

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

// Setup is what the suite needs to know of a driver and of the guest that it boots.
type Setup struct {
	// Driver makes a driver as a starting daemon does; a case that restarts the daemon calls it twice. The function
	// registers with t.Cleanup what it must close. Required.
	Driver func(t *testing.T) vmm.Driver

	// Supervisor is shared by all cases. Nil stands for a process.Child that the suite makes.
	Supervisor process.Supervisor

	// Config makes a machine that boots: CPUs, memory, boot parts, disks (their files are made in ref.StateDir) and
	// network interfaces, all that this host allows. The suite adds Ignition. Required.
	Config func(t *testing.T, ref vmm.Ref) vmm.Config

	// BootText is what the guest's console shows once the guest is up and reacts to what Guest does. Required.
	BootText string

	// Guest says what the guest can be made to do.
	Guest Guest

	// Patience is how long a guest may take to boot or to react; default 60 s.
	Patience time.Duration

	// Lifecycles is the number of lives in the search for leaks; default 20.
	Lifecycles int
}

// Guest is what the guest can do. A nil function or false skips the cases that need it.
type Guest struct {
	// ObeysPowerButton: the guest powers off when its power button is pressed.
	ObeysPowerButton bool
	// PowerOff makes the guest power off by itself, as "poweroff" in it does.
	PowerOff func(ctx context.Context, g Running) error
	// Reset makes the guest restart by itself, as "reboot" in it does.
	Reset func(ctx context.Context, g Running) error
	// Agent: a QEMU guest agent runs in the guest of a machine that has a channel for it. False has cases of its own.
	Agent bool
	// Plug says how the guest takes to devices that come and go.
	Plug Plug
	// IgnitionText is what the console shows before BootText of a guest that got this payload by this transport;
	// "" if this guest cannot tell.
	IgnitionText func(transport vmm.IgnitionTransport, payload []byte) string
}

// Plug is what the guest does when devices come and go. After each boot it must let go of a device as soon as it is
// asked to, unless Deaf. A nil function leaves out what needs it.
type Plug struct {
	// Deaf: nothing in the guest hears of devices that come and go, so that only a guest that does not run, or restarts,
	// lets go of one.
	Deaf bool
	// Hold makes the guest keep all its devices from now on (true), or let go again of what it is asked for, and was
	// asked for meanwhile (false). A restart of the guest ends it.
	Hold func(ctx context.Context, g Running, hold bool) error
	// Disk makes one more disk with its medium. Nil: a sparse raw file in ref.StateDir.
	Disk func(t *testing.T, ref vmm.Ref, name string, size int64) vmm.Disk
	// Grow makes the medium of a disk larger. Nil: it is the file Disk.Path, and raw.
	Grow func(t *testing.T, disk vmm.Disk, size int64)
	// NIC makes one more network interface. Nil leaves out the cases of network interfaces.
	NIC func(t *testing.T, ref vmm.Ref, name string) vmm.NIC
	// Sees waits until the guest has shown on its console that it has a disk of that size, in bytes.
	Sees func(ctx context.Context, g Running, disk vmm.Disk, size int64) error
	// Cycles is how often a disk is plugged in and taken out in the search for leaks; default 25.
	Cycles int
}

// Running is a guest that has shown its BootText.
type Running struct {
	Ref     vmm.Ref
	Console io.Writer // types on the serial console
	// Await waits until the console has shown the text since the suite connected to it.
	Await func(ctx context.Context, text string) error
}

func (s Setup) withDefaults(t *testing.T) Setup {
	t.Helper()
	if s.Driver == nil || s.Config == nil || s.BootText == "" {
		t.Fatal("vmmtest: Setup lacks Driver, Config or BootText")
	}
	if s.Patience == 0 {
		s.Patience = time.Minute
	}
	if s.Lifecycles == 0 {
		s.Lifecycles = 20
	}
	if s.Guest.Plug.Cycles == 0 {
		s.Guest.Plug.Cycles = 25
	}
	if s.Supervisor == nil {
		supervisor, err := process.NewChild(process.Options{})
		if err != nil {
			t.Fatalf("start supervisor: %v", err)
		}
		t.Cleanup(func() { _ = supervisor.Close() })
		s.Supervisor = supervisor
	}
	return s
}
