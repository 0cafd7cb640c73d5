// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestKVMIsNotUsableWhenTheDeviceIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(file, []byte("not a device"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ path, want string }{
		"a missing device is explained": {filepath.Join(t.TempDir(), "kvm"), "there is no "},
		"a plain file is no device":     {file, "is not a KVM device"},
		"another device is no KVM":      {"/dev/null", "is not a KVM device"},
	} {
		t.Run(name, func(t *testing.T) {
			got := probeKVM(t.Context(), tc.path)
			if got.Usable || !strings.Contains(got.Reason, tc.want) {
				t.Errorf("got %+v, want a reason with %q", got, tc.want)
			}
		})
	}
}

func TestPermissionHintNamesTheGroupToJoin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("MISSING: root, needed to give a file to another group")
	}
	file := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(file, nil, 0o660); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o660); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(file, 0, 4294967); err != nil {
		t.Fatal(err)
	}
	if got := permissionHint(file); !strings.Contains(got, `join the group "4294967"`) {
		t.Errorf("group without a name: got %q", got)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := permissionHint(file); !strings.Contains(got, "mode 0600") {
		t.Errorf("no group access: got %q", got)
	}
}

// requireVM skips where no VM can be made at all: then there is nothing to interrupt.
func requireVM(t *testing.T) {
	t.Helper()
	dev, err := openKVM(kvmDevice)
	if err != nil {
		t.Skip("MISSING: a /dev/kvm that opens:", err)
	}
	defer (&testVM{dev: -1, vm: dev, vcpu: -1}).close()
	if err := checkCapabilities(kvmDevice, dev); err != nil {
		t.Skip("MISSING: KVM capabilities:", err)
	}
}

func TestAGuestThatDoesNotEndIsStoppedAtTheDeadline(t *testing.T) {
	requireVM(t)
	begin := time.Now()
	// 2^32 turns take at least a second on any processor.
	got := trial{path: kvmDevice, turns: 1<<32 - 1, limit: 30 * time.Millisecond}.probe(t.Context())
	if got.Usable {
		t.Fatalf("got %+v, want not usable", got)
	}
	if strings.Contains(got.Reason, "abandoned") {
		t.Errorf("the vCPU did not obey: %s", got.Reason)
	}
	if took := time.Since(begin); took > setupLimit+graceLimit {
		t.Errorf("the probe took %v", took)
	}
}

func TestACancelledProbeReturnsAndSaysSo(t *testing.T) {
	requireVM(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no longer wanted"))
	got := trial{path: kvmDevice, turns: 1<<32 - 1, limit: time.Hour}.probe(ctx)
	if got.Usable || !strings.Contains(got.Reason, "no longer wanted") {
		t.Errorf("got %+v, want the cause", got)
	}
}

func TestAShortGuestRunsCorrectlyEvenWhereKernelsDoNot(t *testing.T) {
	requireVM(t)
	got := trial{path: kvmDevice, turns: 1000, limit: runLimit}.probe(t.Context())
	if !got.Usable {
		t.Skipf("MISSING: a KVM that runs plain 64-bit code: %s", got.Reason)
	}
	if got.Took <= 0 {
		t.Errorf("no time was measured: %+v", got)
	}
}

// TestThisServersKVM asserts what holds everywhere: an answer in time, with a reason. The answer is logged.
func TestThisServersKVM(t *testing.T) {
	begin := time.Now()
	got := ProbeKVM(t.Context())
	t.Logf("usable=%v took=%v: %s", got.Usable, got.Took, got.Reason)
	if got.Reason == "" {
		t.Error("no reason given")
	}
	if took := time.Since(begin); took > setupLimit+runLimit+2*graceLimit {
		t.Errorf("the probe took %v", took)
	}
	if os.Getenv("CHP_TEST_KVM") == "usable" && !got.Usable {
		t.Error("CHP_TEST_KVM promises a usable KVM")
	}
}
