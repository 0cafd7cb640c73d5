// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"strings"
	"testing"
)

func TestAccelerator(t *testing.T) {
	for name, tc := range map[string]struct {
		server       server
		want         string
		name, reason string
		fails        string
	}{
		"auto takes KVM that works":             {server{kvm: true}, "auto", "kvm", "a guest ran", ""},
		"auto does not take KVM that does not":  {server{}, "", "tcg", "KVM is not usable: kernel code is emulated", ""},
		"auto takes HVF on macOS":               {server{os: "darwin", hvf: true}, "auto", "hvf", "the kernel says so", ""},
		"auto falls back on macOS":              {server{os: "darwin"}, "auto", "tcg", "HVF is not usable", ""},
		"KVM by name must work":                 {server{}, "kvm", "", "", "KVM is not usable: kernel code is emulated"},
		"HVF by name must work":                 {server{}, "hvf", "", "", "HVF is not usable"},
		"TCG by name is obeyed although slower": {server{kvm: true}, "tcg", "tcg", "configuration", ""},
		"an unknown name is refused":            {server{}, "xen", "", "", "one of auto, kvm, hvf, tcg"},
	} {
		t.Run(name, func(t *testing.T) {
			got, reason, err := tc.server.finder().Accelerator(t.Context(), tc.want)
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Fatalf("got error %v, want %q", err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got != tc.name || !strings.Contains(reason, tc.reason) {
				t.Errorf("got %s (%s), want %s (%s)", got, reason, tc.name, tc.reason)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	both := map[string]string{"/usr/bin/cloud-hypervisor": ch53, "/usr/bin/qemu-system-x86_64": qemu72, "/usr/bin/qemu-system-aarch64": qemu72}
	fw := map[string][]byte{
		debianCLOUDHV:                     elf,
		"/usr/share/OVMF/OVMF_CODE_4M.fd": flash, "/usr/share/OVMF/OVMF_VARS_4M.fd": flash,
	}
	for name, tc := range map[string]struct {
		server        server
		want          Wants
		driver, accel string
		reasons       string // piece of the joined reasons
		warnings      string // piece of the joined warnings; empty: there are none
		fails         string
	}{
		"auto takes Cloud Hypervisor when all is there": {
			server: server{programs: both, files: fw, kvm: true}, driver: CloudHypervisor, accel: "kvm", reasons: "KVM works: a guest ran",
		},
		"auto takes QEMU when KVM does not work": {
			server: server{programs: both, files: fw}, driver: QEMU, accel: "tcg",
			reasons: "Cloud Hypervisor is not used: KVM is not usable: kernel code is emulated",
		},
		"auto takes QEMU when the firmware is missing": {
			server: server{programs: both, kvm: true}, driver: QEMU, accel: "kvm",
			reasons: "not used: no usable firmware for cloud-hypervisor", warnings: "no usable firmware for qemu",
		},
		"auto takes QEMU when Cloud Hypervisor is too old": {
			server: server{files: fw, kvm: true, programs: map[string]string{
				"/usr/bin/cloud-hypervisor": "cloud-hypervisor v40.0", "/usr/bin/qemu-system-x86_64": qemu72,
			}},
			driver: QEMU, accel: "kvm", reasons: "version 40.0 is too old",
		},
		"auto takes QEMU on macOS": {
			server: server{programs: both, files: fw, os: "darwin", hvf: true}, driver: QEMU, accel: "hvf", reasons: "needs Linux, this is darwin",
		},
		"auto takes QEMU for guests of another architecture": {
			server: server{programs: both, files: fw, kvm: true}, want: Wants{Arch: "arm64"}, driver: QEMU, accel: "tcg",
			reasons: "guests are arm64, the server is amd64", warnings: "no usable firmware for qemu on arm64",
		},
		"auto respects a configured accelerator": {
			server: server{programs: both, files: fw, kvm: true}, want: Wants{Accelerator: "tcg"}, driver: QEMU, accel: "tcg",
			reasons: `it needs KVM, but accelerator "tcg" is configured`,
		},
		"auto fails when nothing is there": {server: server{kvm: true}, fails: "no hypervisor can be used"},
		"a configured Cloud Hypervisor is never replaced": {
			server: server{programs: both}, want: Wants{Hypervisor: "cloud-hypervisor"}, driver: CloudHypervisor, accel: "kvm",
			reasons: "is configured", warnings: "KVM is not usable",
		},
		"a configured Cloud Hypervisor must be there": {
			server: server{kvm: true}, want: Wants{Hypervisor: "cloud-hypervisor"}, fails: "no usable cloud-hypervisor binary",
		},
		"a configured QEMU is used although Cloud Hypervisor works": {
			server: server{programs: both, files: fw, kvm: true}, want: Wants{Hypervisor: "qemu"}, driver: QEMU, accel: "kvm", reasons: "QEMU is configured",
		},
		"KVM cannot run guests of another architecture": {
			server: server{programs: both, kvm: true}, want: Wants{Hypervisor: "qemu", Arch: "arm64", Accelerator: "kvm"},
			fails: "server's architecture (amd64) only",
		},
		"an unknown hypervisor is refused": {want: Wants{Hypervisor: "xen"}, fails: "one of auto, cloud-hypervisor, qemu"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.server.finder().Choose(t.Context(), tc.want)
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Fatalf("got error %v, want %q", err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Driver != tc.driver || got.Accelerator != tc.accel || got.Binary.Path == "" {
				t.Errorf("got %s with %s, want %s with %s", got.Driver, got.Accelerator, tc.driver, tc.accel)
			}
			if reasons := strings.Join(got.Reasons, "\n"); !strings.Contains(reasons, tc.reasons) {
				t.Errorf("reasons lack %q:\n%s", tc.reasons, reasons)
			}
			warnings := strings.Join(got.Warnings, "\n")
			if !strings.Contains(warnings, tc.warnings) || (tc.warnings == "") != (warnings == "") {
				t.Errorf("want warning %q, got:\n%s", tc.warnings, warnings)
			}
		})
	}
}

func TestChooseProbesKVMOnce(t *testing.T) {
	f := server{programs: map[string]string{"/usr/bin/cloud-hypervisor": ch53, "/usr/bin/qemu-system-x86_64": qemu72}}.finder()
	probes := 0
	f.KVM = func(context.Context) KVM { probes++; return KVM{Reason: "no"} }
	if _, err := f.Choose(t.Context(), Wants{}); err != nil {
		t.Fatal(err)
	}
	if probes != 1 {
		t.Errorf("%d probes", probes)
	}
}
