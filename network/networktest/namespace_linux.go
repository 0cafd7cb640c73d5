// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package networktest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const inside = "NETWORKTEST_NAMESPACE"

// InNamespace reports whether the test runs in a network namespace of its own, with nothing but lo and with a /sys that
// shows it. If not, it runs the
// test once more in a new process that does, takes over its outcome, and returns false: the caller then returns. Where
// the test may not make a namespace it is skipped and says so.
func InNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		if err := remountSys(t.TempDir()); err != nil {
			t.Fatal(err)
		}
		return true
	}
	if err := able(); err != nil {
		t.Skipf("SKIPPED: NOT TESTED on real network devices: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.run=^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$", "-test.count=1"}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	if deadline, ok := t.Deadline(); ok {
		args = append(args, fmt.Sprintf("-test.timeout=%s", untilJustBefore(deadline)))
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	// Without the mounts being shared, none that is made here is seen outside.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("in a network namespace: %v\n%s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP: "+t.Name()+" ") {
		t.Skipf("%s", out)
	}
	t.Logf("in a network namespace:\n%s", out)
	return false
}

// remountSys shows the namespace's devices in /sys, which shows those of the namespace that it was mounted in. What is
// mounted below, such as the cgroups, is kept.
func remountSys(scratch string) error {
	const cgroups = "/sys/fs/cgroup"
	kept := unix.Mount(cgroups, scratch, "", unix.MS_BIND|unix.MS_REC, "") == nil
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys anew: %w", err)
	}
	if !kept {
		return nil
	}
	if err := unix.Mount(scratch, cgroups, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount the cgroups anew: %w", err)
	}
	return unix.Unmount(scratch, unix.MNT_DETACH)
}

// able says what is missing for network devices of one's own.
func able() error {
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("no network namespace can be made (CAP_SYS_ADMIN is needed): %w", err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/net/tun: %w", err)
	}
	return unix.Close(fd)
}
