// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/guestagent"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech"
)

// fakeBinary is built once for all tests of this package.
var fakeBinary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "fakech")
	if err == nil {
		fakeBinary, err = fakech.Build(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// newFake makes a driver whose VMMs are fakes that follow the script.
func newFake(t *testing.T, script fakech.Script) *cloudhypervisor.Driver {
	t.Helper()
	return fakeDriver(t, script, func(*cloudhypervisor.Options) {})
}

func fakeDriver(t *testing.T, script fakech.Script, change func(o *cloudhypervisor.Options)) *cloudhypervisor.Driver {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.json")
	if err := script.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	o := cloudhypervisor.Options{
		Binary:  fakeBinary,
		Arch:    "amd64",
		Env:     []string{fakech.ScriptEnv + "=" + path},
		OpenTap: openNothing,
	}
	change(&o)
	return newDriver(t, o)
}

// openNothing stands for a tap, which a fake does not look at.
func openNothing(_ string, queues int) ([]*os.File, error) {
	var files []*os.File
	for range max(queues, 1) {
		f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func newDriver(t *testing.T, o cloudhypervisor.Options) *cloudhypervisor.Driver {
	t.Helper()
	d, err := cloudhypervisor.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// fakeConfig is a machine that the fake boots: it looks for the files and no further.
func fakeConfig(t *testing.T, ref vmm.Ref) vmm.Config {
	t.Helper()
	cfg := directBoot(t, ref, []byte("no kernel"))
	cfg.NICs = []vmm.NIC{{ID: vmm.DeviceID("nic", "primary"), MAC: machine.MAC(ref.MachineID, "primary"), Kind: vmm.NICTap, Tap: "tap0"}}
	return cfg
}

func directBoot(t *testing.T, ref vmm.Ref, kernel []byte) vmm.Config {
	t.Helper()
	cfg := vmm.Config{Ref: ref, CPUs: 1, MemoryBytes: 64 << 20}
	cfg.Boot.Kernel = filepath.Join(ref.StateDir, "kernel")
	if err := os.WriteFile(cfg.Boot.Kernel, kernel, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"root", "spare"} {
		path := filepath.Join(ref.StateDir, name+".raw")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, 1<<20); err != nil {
			t.Fatal(err)
		}
		cfg.Disks = append(cfg.Disks, vmm.Disk{ID: vmm.DeviceID("disk", name), Path: path, Serial: name})
	}
	return cfg
}

// control steers the fake of a machine.
func control(ref vmm.Ref) fakech.Control {
	return fakech.ControlFor(filepath.Join(ref.RuntimeDir, "api.sock"))
}

func TestTheDriverConformsOnFakes(t *testing.T) {
	for _, dialect := range []string{"v52", "v53", "main"} {
		t.Run(dialect, func(t *testing.T) {
			script := fakech.Script{Version: dialect, Control: true, QGAPort: guestagent.VsockPort}
			if dialect == "v52" {
				// It loses what the guest prints while nobody is connected.
				script.GuestBootMS = 200
			}
			if dialect == "main" {
				script.QGAPort = 0
			}
			vmmtest.Conformance(t, vmmtest.Setup{
				Driver:   func(t *testing.T) vmm.Driver { return newFake(t, script) },
				Config:   fakeConfig,
				BootText: fakech.BootMarker,
				Guest: vmmtest.Guest{
					ObeysPowerButton: true,
					Agent:            script.QGAPort != 0,
					Plug:             fakePlug(),
					PowerOff:         func(_ context.Context, g vmmtest.Running) error { return control(g.Ref).PowerOff() },
					Reset:            func(_ context.Context, g vmmtest.Running) error { return control(g.Ref).Reset() },
					IgnitionText: func(transport vmm.IgnitionTransport, payload []byte) string {
						if transport == vmm.IgnitionSMBIOS {
							return oemText(payload)
						}
						return "disk ignition "
					},
				},
			})
		})
	}
}

// fakePlug is how the guest of a fake takes to devices that come and go.
func fakePlug() vmmtest.Plug {
	return vmmtest.Plug{
		Hold: func(_ context.Context, g vmmtest.Running, hold bool) error { return control(g.Ref).HoldEject(hold) },
		NIC: func(_ *testing.T, ref vmm.Ref, name string) vmm.NIC {
			return vmm.NIC{ID: vmm.DeviceID("nic", name), MAC: machine.MAC(ref.MachineID, name), Kind: vmm.NICTap, Tap: "tap1"}
		},
		Sees: func(ctx context.Context, g vmmtest.Running, disk vmm.Disk, size int64) error {
			return g.Await(ctx, fmt.Sprintf("disk %s %d", disk.Serial, size))
		},
	}
}

func oemText(payload []byte) string {
	return "oem: opt/com.coreos/config=" + base64.StdEncoding.EncodeToString(payload)
}

// realBinary finds a real Cloud Hypervisor and a KVM to run it on, or skips.
func realBinary(t *testing.T) (path, version string) {
	t.Helper()
	path = os.Getenv("CLOUD_HYPERVISOR")
	if path == "" {
		found, err := exec.LookPath("cloud-hypervisor")
		if err != nil {
			t.Skip("SKIPPED: no real cloud-hypervisor in $CLOUD_HYPERVISOR or PATH, so only fakes are driven")
		}
		path = found
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("SKIPPED: the tiny guest for the real cloud-hypervisor is for amd64 only")
	}
	kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("SKIPPED: the real cloud-hypervisor at %s cannot be run: %v", path, err)
	}
	kvm.Close()
	out, err := exec.CommandContext(t.Context(), path, "--version").Output()
	if err != nil {
		t.Fatalf("%s --version: %v", path, err)
	}
	return path, strings.TrimSpace(string(out))
}

func TestTheDriverConformsOnARealVMM(t *testing.T) {
	binary, version := realBinary(t)
	typing := func(key string) func(context.Context, vmmtest.Running) error {
		return func(_ context.Context, g vmmtest.Running) error {
			_, err := io.WriteString(g.Console, key)
			return err
		}
	}
	vmmtest.Conformance(t, vmmtest.Setup{
		Driver: func(t *testing.T) vmm.Driver {
			return newDriver(t, cloudhypervisor.Options{Binary: binary, Version: version})
		},
		Config:   func(t *testing.T, ref vmm.Ref) vmm.Config { return directBoot(t, ref, vmmtest.TinyGuest()) },
		BootText: vmmtest.TinyGuestReady,
		Guest: vmmtest.Guest{
			Plug:     vmmtest.Plug{Deaf: true},
			PowerOff: typing("!"),
			Reset:    typing("~"),
			IgnitionText: func(transport vmm.IgnitionTransport, payload []byte) string {
				if transport == vmm.IgnitionSMBIOS {
					return oemText(payload)
				}
				return ""
			},
		},
		Patience: 2 * time.Minute,
	})
}
