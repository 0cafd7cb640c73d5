// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

// ready is what the guest says when its console has a shell; its markers come before.
const ready = "Enter 'help' for a list of built-in commands."

func TestTheDriverConformsOnTheRealCloudHypervisorWithLinux(t *testing.T) {
	binary, err := host.FindCloudHypervisor(t.Context(), "")
	if err != nil {
		t.Skipf("SKIPPED: the driver was NOT run with the real Cloud Hypervisor: %v", err)
	}
	needsKVM(t)
	files, tap := linux(t), makeTap(t)
	vmmtest.Conformance(t, vmmtest.Setup{
		Driver: func(t *testing.T) vmm.Driver {
			d, err := cloudhypervisor.New(cloudhypervisor.Options{
				Binary: binary.Path, Version: binary.Version, Arch: runtime.GOARCH,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { d.Close() })
			return d
		},
		Config:   func(t *testing.T, ref vmm.Ref) vmm.Config { return config(t, files, tap, ref) },
		BootText: ready,
		Guest: vmmtest.Guest{
			ObeysPowerButton: true,
			Agent:            true,
			Plug:             plugging(),
			PowerOff:         typing("poweroff\n"),
			Reset:            typing("reboot\n"),
			IgnitionText: func(_ vmm.IgnitionTransport, payload []byte) string {
				return "guest: ignition-data " + base64.StdEncoding.EncodeToString(payload)
			},
		},
		Patience:   5 * time.Minute,
		Lifecycles: 4,
	})
}

// needsKVM skips where no guest can run. In the machine that package nested makes, that is a failure; the probe may take
// more than its time there.
func needsKVM(t *testing.T) {
	t.Helper()
	inside := os.Getenv("CHP_GUEST_DIR") != ""
	kvm := host.ProbeKVM(t.Context())
	for tries := 0; inside && !kvm.Usable && tries < 10; tries++ {
		t.Logf("KVM is tried once more: %s", kvm.Reason)
		kvm = host.ProbeKVM(t.Context())
	}
	switch {
	case !kvm.Usable && inside:
		t.Fatalf("no guest runs in the machine that was made for that: %s", kvm.Reason)
	case !kvm.Usable:
		t.Skipf("SKIPPED: no guest can run here (package nested makes a machine where one can): %s", kvm.Reason)
	}
}

func linux(t *testing.T) guest.Files {
	t.Helper()
	files, err := guest.Open(os.Getenv("CHP_GUEST_DIR"))
	if os.Getenv("CHP_GUEST_DIR") == "" {
		files, err = guest.Build(t.Context(), guest.Options{CacheDir: guest.DefaultCacheDir(), GuestAgent: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// config is a machine with a root disk, a spare disk and, where a tap could be made, a network interface.
func config(t *testing.T, files guest.Files, tap string, ref vmm.Ref) vmm.Config {
	t.Helper()
	root, spare := filepath.Join(ref.StateDir, "root.raw"), filepath.Join(ref.StateDir, "spare.raw")
	content, err := os.ReadFile(files.RootDisk)
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{root: content, spare: make([]byte, 1<<20)} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := vmm.Config{
		Ref: ref, CPUs: 1, MemoryBytes: 192 << 20,
		Boot: vmm.Boot{Kernel: files.VMLinux, Initramfs: files.Initramfs, CommandLine: guest.DefaultCommandLine(files.Arch) + " chp.agent"},
		Disks: []vmm.Disk{
			{ID: vmm.DeviceID("disk", "root"), Path: root, Serial: "root"},
			{ID: vmm.DeviceID("disk", "spare"), Path: spare, Serial: "spare"},
		},
	}
	if tap != "" {
		nic := vmm.NIC{ID: vmm.DeviceID("nic", "primary"), MAC: machine.MAC(ref.MachineID, "primary"), Kind: vmm.NICTap, Tap: tap}
		cfg.NICs = []vmm.NIC{nic}
	}
	return cfg
}

// plugging is how the guest takes to devices that come and go: it says so within a fifth of a second.
func plugging() vmmtest.Plug {
	return vmmtest.Plug{
		Sees: func(ctx context.Context, g vmmtest.Running, _ vmm.Disk, size int64) error {
			return g.Await(ctx, fmt.Sprintf(" bytes=%d", size))
		},
		NIC: func(t *testing.T, ref vmm.Ref, name string) vmm.NIC {
			nic := vmm.NIC{ID: vmm.DeviceID("nic", name), MAC: machine.MAC(ref.MachineID, name), Kind: vmm.NICTap}
			if nic.Tap = ensureTap(t, ref.MachineID, name); nic.Tap == "" {
				t.Skip("SKIPPED: NOT TESTED: no tap can be made here")
			}
			return nic
		},
	}
}

// makeTap makes the tap of all cases, which come one after the other; "" if there can be none.
func makeTap(t *testing.T) string {
	t.Helper()
	return ensureTap(t, "conformance", "primary")
}

func ensureTap(t *testing.T, owner, nic string) string {
	t.Helper()
	taps, name := tap.Kernel{}, tap.Name(owner, nic)
	if _, err := taps.Ensure(t.Context(), tap.Spec{Name: name, Owner: owner}); err != nil {
		t.Logf("SKIPPED IN PART: the guests have no network interface: %v", err)
		return ""
	}
	t.Cleanup(func() {
		if err := taps.Remove(context.Background(), name, owner); err != nil {
			t.Errorf("remove tap: %v", err)
		}
	})
	return name
}

func typing(text string) func(context.Context, vmmtest.Running) error {
	return func(_ context.Context, g vmmtest.Running) error {
		_, err := io.WriteString(g.Console, text)
		return err
	}
}
