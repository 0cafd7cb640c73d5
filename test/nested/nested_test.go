// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package nested

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

const module = "github.com/ironcore-dev/cloud-hypervisor-provider"

// environment is set for the tests inside the machine.
const environment = `export PATH=/bin TMPDIR=/tmp HOME=/root CLOUD_HYPERVISOR=/nested/cloud-hypervisor
export CHP_E2E_BIN_DIR=/nested/bin CHP_GUEST_DIR=/nested/guest CHP_E2E_PATIENCE=5m`

// realHypervisor finds Cloud Hypervisor and an emulator for a host to run it on, or skips.
func realHypervisor(t *testing.T) (binary host.Binary, qemu string) {
	t.Helper()
	if runtime.GOARCH != "amd64" || runtime.GOOS != "linux" {
		t.Skip("SKIPPED: only on Linux and amd64 does QEMU emulate a processor with KVM; the real Cloud Hypervisor was NOT run")
	}
	binary, err := host.FindCloudHypervisor(t.Context(), "")
	if err != nil {
		t.Skipf("SKIPPED: the daemon was NOT run with the real Cloud Hypervisor: %v", err)
	}
	if kvm := host.ProbeKVM(t.Context()); kvm.Usable {
		t.Skip("SKIPPED: KVM works on this host, so test/e2e runs Cloud Hypervisor on it directly")
	}
	if qemu, err = exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("SKIPPED: qemu-system-x86_64 is not on this host (Debian package qemu-system-x86): the real Cloud Hypervisor was NOT run")
	}
	return binary, qemu
}

// run runs tests of a package, chosen by flags, in an emulated machine that has all they need. There is no fake in it:
// what asks for the fake gets the real one.
func run(t *testing.T, testPackage, flags string) {
	t.Helper()
	binary, qemu := realHypervisor(t)
	commands := []string{environment, "/nested/bin/test -test.v -test.timeout 2h " + flags}
	o := Options{QEMU: qemu, Commands: commands, Files: map[string]string{
		"/nested/cloud-hypervisor": binary.Path, "/nested/bin/fake-cloud-hypervisor": binary.Path,
	}}
	libraries, err := Libraries(binary.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range libraries {
		o.Files[l] = l
	}
	build(t, o.Files, testPackage)
	guests(t, &o, testPackage == driverTests)
	started := time.Now()
	o.Line = func(text string) { t.Logf("%5.0fs %s", time.Since(started).Seconds(), text) }
	ctx, cancel := within(t)
	defer cancel()
	status, err := Run(ctx, o)
	if errors.Is(err, ErrMachineDied) {
		t.Logf("ONCE AGAIN, since emulators of nested machines are not perfect: %v", err)
		status, err = Run(ctx, o)
	}
	if err != nil {
		t.Fatal(err)
	}
	if status != 0 {
		t.Errorf("the tests with %s failed, exit status %d", binary.Version, status)
	}
}

// within ends the run so long before the test's own deadline that it can still tell.
func within(t *testing.T) (context.Context, context.CancelFunc) {
	if deadline, ok := t.Deadline(); ok {
		return context.WithDeadline(t.Context(), deadline.Add(-20*time.Second))
	}
	return context.WithCancel(t.Context())
}

// build compiles the daemon and the tests, all of them static.
func build(t *testing.T, files map[string]string, testPackage string) {
	t.Helper()
	dir := t.TempDir()
	for name, args := range map[string][]string{
		"daemon":            {"build", module + "/cmd/cloud-hypervisor-provider"},
		"daemon-failpoints": {"build", "-tags", "failpoints", module + "/cmd/cloud-hypervisor-provider"},
		"test":              {"test", "-c", testPackage},
	} {
		args = slices.Insert(args, len(args)-1, "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, name))
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		files["/nested/bin/"+name] = filepath.Join(dir, name)
	}
}

// driverTests is the package whose guests run a guest agent.
const driverTests = module + "/test/nested/driver"

// guests builds the guest that is the host, and the guest of that host, that one with a guest agent if wanted.
func guests(t *testing.T, o *Options, agent bool) {
	t.Helper()
	for _, modules := range [][]string{nil, Modules()} {
		files, err := guest.Build(t.Context(), guest.Options{
			CacheDir: guest.DefaultCacheDir(), Modules: modules, GuestAgent: agent && modules == nil,
		})
		if err != nil {
			t.Fatal(err)
		}
		if modules != nil {
			o.Guest = files
			return
		}
		entries, err := os.ReadDir(filepath.Dir(files.Kernel))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			o.Files["/nested/guest/"+e.Name()] = filepath.Join(filepath.Dir(files.Kernel), e.Name())
		}
	}
}

func TestTheDaemonRunsMachinesOnTheRealCloudHypervisor(t *testing.T) {
	run(t, module+"/test/e2e", "-test.run TestFromCreateMachineToABootedGuestAndBack/cloud-hypervisor")
}

func TestTheDaemonKeepsTheContractOnTheRealCloudHypervisor(t *testing.T) {
	needsAll(t)
	run(t, module+"/test/e2e", "-test.run TestTheWholeDaemonKeepsTheContract")
}

func TestAKillOfTheDaemonAtAnyStepConvergesOnTheRealCloudHypervisor(t *testing.T) {
	needsAll(t)
	run(t, module+"/test/e2e", "-test.run TestAKillOfTheDaemonAtAnyStepConverges")
}

func TestTheDriverConformsOnTheRealCloudHypervisor(t *testing.T) {
	needsAll(t)
	// It resets a guest 150 times, which takes ten minutes here; a guest of 180 bytes proves the same on any host.
	run(t, driverTests, "-test.skip '/a_slow_reader'")
}

func TestDevicesComeAndGoOnTheRealCloudHypervisor(t *testing.T) {
	needsAll(t)
	run(t, driverTests, "-test.run '^TestTheDriverConforms.*/^(a_disk_comes|a_disk_grows|a_daemon_that_restarts_between|a_network_interface)'")
}

// needsAll keeps what takes an hour under emulation out of the ordinary run of tests.
func needsAll(t *testing.T) {
	t.Helper()
	if os.Getenv("CHP_NESTED") != "all" {
		t.Skip("NOT RUN on the real Cloud Hypervisor: this takes up to half an hour under emulation; set CHP_NESTED=all")
	}
}
