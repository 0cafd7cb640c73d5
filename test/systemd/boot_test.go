// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/nested"
)

const module = "github.com/ironcore-dev/cloud-hypervisor-provider"

// machine collects what the machine is made of, or skips.
func machine(t *testing.T) nested.Options {
	t.Helper()
	if runtime.GOARCH != "amd64" || runtime.GOOS != "linux" {
		t.Skip("SKIPPED: the machine with systemd is made of the files of a Linux host on amd64; the unit was NOT run")
	}
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("SKIPPED: qemu-system-x86_64 is not on this host (Debian package qemu-system-x86); the unit was NOT run")
	}
	files, err := Root(t.TempDir())
	if errors.Is(err, ErrMissing) {
		t.Skipf("SKIPPED: the unit was NOT run under systemd (Debian packages systemd and dbus-daemon): %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	built, err := guest.Build(t.Context(), guest.Options{CacheDir: guest.DefaultCacheDir(), Modules: nested.Modules()})
	if err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	return nested.Options{
		QEMU: qemu, Guest: built, Files: files, Init: initPath,
		Line: func(text string) { t.Logf("%5.0fs %s", time.Since(started).Seconds(), text) },
	}
}

// add builds programs into the machine, all of them static.
func add(t *testing.T, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, args := range map[string][]string{
		"daemon":     {"build", "-ldflags=-s -w", "-o", "", module + "/cmd/cloud-hypervisor-provider"},
		"daemon-new": {"build", "-ldflags=-s -w -X main.version=0.2.0-new", "-o", "", module + "/cmd/cloud-hypervisor-provider"},
		"test":       {"test", "-c", "-ldflags=-s -w", "-o", "", module + "/test/systemd/inner"},
		"process":    {"test", "-c", "-ldflags=-s -w", "-o", "", module + "/internal/vmm/process"},
	} {
		args[len(args)-2] = filepath.Join(dir, name)
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		files["/nested/bin/"+name] = filepath.Join(dir, name)
	}
	fake, err := fakech.Build(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	files["/nested/bin/fake-cloud-hypervisor"] = fake
	files["/usr/local/bin/cloud-hypervisor-provider"] = files["/nested/bin/daemon"]
	if files["/etc/systemd/system/"+filepath.Base(unitFile)], err = filepath.Abs(unitFile); err != nil {
		t.Fatal(err)
	}
}

// boot runs the commands in the machine.
func boot(t *testing.T, o nested.Options, commands ...string) {
	t.Helper()
	o.Commands = append([]string{"export PATH=/bin TMPDIR=/tmp HOME=/root CHP_SYSTEMD_INSIDE=1"}, commands...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if deadline, ok := t.Deadline(); ok {
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-20*time.Second))
		defer cancel()
	}
	status, err := nested.Run(ctx, o)
	if errors.Is(err, nested.ErrMachineDied) {
		t.Logf("ONCE AGAIN, since emulators are not perfect: %v", err)
		status, err = nested.Run(ctx, o)
	}
	if err != nil {
		t.Fatal(err)
	}
	if status != 0 {
		t.Errorf("the tests in the machine failed, exit status %d", status)
	}
}

func TestNothingThatHappensToTheDaemonsUnitTouchesAGuest(t *testing.T) {
	o := machine(t)
	add(t, o.Files)
	boot(t, o, "CHP_SYSTEMD_HYPERVISOR=fake /nested/bin/test -test.v -test.timeout 1h")
}

func TestNothingElseThatCanHappenToAUnitTouchesAGuest(t *testing.T) {
	needsAll(t)
	o := machine(t)
	add(t, o.Files)
	boot(t, o, "export CHP_SYSTEMD=all", "CHP_SYSTEMD_HYPERVISOR=fake /nested/bin/test -test.v -test.timeout 1h")
}

// The same with a Linux guest, run by QEMU on the KVM of the machine.
func TestNothingThatHappensToTheDaemonsUnitTouchesALinuxGuest(t *testing.T) {
	needsAll(t)
	o := machine(t)
	add(t, o.Files)
	linux(t, o.Files)
	boot(t, o, "CHP_SYSTEMD_HYPERVISOR=qemu /nested/bin/test -test.v -test.timeout 1h")
}

func TestTheSupervisorConformsUnderARealSystemd(t *testing.T) {
	o := machine(t)
	add(t, o.Files)
	boot(t, o, "/nested/bin/process -test.v -test.timeout 1h -test.run TestSystemdConforms$")
}

// needsAll keeps what takes minutes under emulation out of the ordinary run of tests.
func needsAll(t *testing.T) {
	t.Helper()
	if os.Getenv("CHP_SYSTEMD") != "all" {
		t.Skip("NOT RUN: this takes minutes under emulation; set CHP_SYSTEMD=all")
	}
}

// linux adds the host's QEMU and the guest that it runs there. The machine's KVM runs it.
func linux(t *testing.T, files map[string]string) {
	t.Helper()
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatal(err)
	}
	if err := Program(files, qemu); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{
		"/usr/share/seabios/*.bin", "/usr/share/qemu/*.bin", "/usr/share/qemu/*.rom", "/usr/lib/ipxe/qemu/*.rom",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			files[path] = path
		}
	}
	built, err := guest.Build(t.Context(), guest.Options{CacheDir: guest.DefaultCacheDir()})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Dir(built.Kernel))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		files["/nested/guest/"+e.Name()] = filepath.Join(filepath.Dir(built.Kernel), e.Name())
	}
}
