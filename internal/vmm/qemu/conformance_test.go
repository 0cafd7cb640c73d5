// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu_test

import (
	"context"
	_ "embed"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/qemu"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest"
)

// bootSector is testdata/guest.S.
//
//go:embed testdata/guest.bin
var bootSector []byte

// patience is generous: guests are emulated and the host may be busy.
const patience = 2 * time.Minute

// binary finds QEMU or skips the test.
func binary(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("SKIPPED LOUDLY: qemu-system-x86_64 is not installed (Debian package qemu-system-x86); the QEMU driver is NOT tested against QEMU")
	}
	return path
}

func newDriver(t *testing.T, change ...func(*qemu.Options)) *qemu.Driver {
	t.Helper()
	o := qemu.Options{Binary: binary(t), Architecture: "amd64", Accelerator: qemu.TCG}
	for _, f := range change {
		f(&o)
	}
	d, err := qemu.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// tinyConfig is a machine that boots the boot sector.
func tinyConfig(t *testing.T, ref vmm.Ref) vmm.Config {
	t.Helper()
	boot := filepath.Join(ref.StateDir, "boot.raw")
	if err := os.WriteFile(boot, bootSector, 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(ref.StateDir, "data,with a comma.raw")
	for path, size := range map[string]int64{boot: 1 << 20, data: 8 << 20} {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return vmm.Config{
		Ref: ref, CPUs: 2, MemoryBytes: 64 << 20,
		Disks: []vmm.Disk{
			{ID: vmm.DeviceID("disk", "root"), Path: boot, Serial: "vda-8000000000000001"},
			{ID: vmm.DeviceID("disk", "data.with-a-very-long-name-that-has-to-be-cut"), Path: data, Serial: "vdb,comma"},
		},
		NICs: []vmm.NIC{
			{ID: vmm.DeviceID("nic", "isolated"), MAC: "02:00:00:00:00:01", Kind: vmm.NICIsolated},
			{
				ID: vmm.DeviceID("nic", "user"), MAC: "02:00:00:00:00:02", Kind: vmm.NICUser,
				Forwards: []vmm.PortForward{{HostAddress: "127.0.0.1", GuestPort: 22}, {GuestPort: 80}},
			},
		},
	}
}

func key(k string) func(context.Context, vmmtest.Running) error {
	return func(_ context.Context, g vmmtest.Running) error {
		_, err := io.WriteString(g.Console, k)
		return err
	}
}

func TestDriverConforms(t *testing.T) {
	vmmtest.Conformance(t, vmmtest.Setup{
		Driver:   func(t *testing.T) vmm.Driver { return newDriver(t) },
		Config:   tinyConfig,
		BootText: "READY\r\n",
		Guest: vmmtest.Guest{
			ObeysPowerButton: true,
			PowerOff:         key("!"),
			Reset:            key("~"),
			IgnitionText: func(_ vmm.IgnitionTransport, payload []byte) string {
				return "IGNITION " + string(payload)
			},
			Plug: vmmtest.Plug{
				Hold: func(ctx context.Context, g vmmtest.Running, hold bool) error {
					if hold {
						return key("h")(ctx, g)
					}
					return key("l")(ctx, g)
				},
				NIC: func(_ *testing.T, _ vmm.Ref, name string) vmm.NIC {
					return vmm.NIC{ID: vmm.DeviceID("nic", name), MAC: "02:00:00:00:01:01", Kind: vmm.NICUser}
				},
				Cycles: 50,
			},
		},
		Patience:   patience / 4,
		Lifecycles: 10,
	})
}
