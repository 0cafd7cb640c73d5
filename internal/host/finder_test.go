// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// server describes a made-up server for a Finder.
type server struct {
	programs map[string]string // absolute path of an executable → output of --version
	files    map[string][]byte // absolute path → content
	env      map[string]string
	kvm      bool
	hvf      bool
	os, arch string
}

func (s server) finder() Finder {
	fsys := fstest.MapFS{}
	for name := range s.programs {
		fsys[fsPath(name)] = &fstest.MapFile{Mode: 0o755}
	}
	for name, content := range s.files {
		fsys[fsPath(name)] = &fstest.MapFile{Data: content, Mode: 0o644}
	}
	f := Finder{
		FS: fsys, OS: s.os, Arch: s.arch,
		Getenv: func(key string) string { return s.env[key] },
		LookPath: func(name string) (string, error) {
			if path := "/usr/bin/" + name; fsys[fsPath(path)] != nil {
				return path, nil
			}
			return "", exec.ErrNotFound
		},
		Version: func(_ context.Context, path string) (string, error) {
			if out := s.programs[path]; out != "" {
				return out, nil
			}
			return "", errors.New("exit status 1")
		},
		KVM: func(context.Context) KVM {
			if s.kvm {
				return KVM{Usable: true, Reason: "a guest ran"}
			}
			return KVM{Reason: "kernel code is emulated"}
		},
		HVF: func() (bool, string) {
			if s.hvf {
				return true, "the kernel says so"
			}
			return false, "the kernel says no"
		},
	}
	if s.os == "" {
		f.OS = "linux"
	}
	if s.arch == "" {
		f.Arch = "amd64"
	}
	return f
}

const (
	ch53   = "cloud-hypervisor v53.0\n"
	qemu72 = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright (c) 2003-2022 Fabrice Bellard\n"

	debianCLOUDHV = "/usr/share/cloudhv-efi-x86-64/CLOUDHV.fd"
)

var (
	elf   = append([]byte("\x7fELF"), make([]byte, 4<<20)...)
	flash = make([]byte, 1<<20)
)

func TestFindCloudHypervisor(t *testing.T) {
	for name, tc := range map[string]struct {
		server   server
		override string
		want     Binary
		fails    []string // pieces of the error
	}{
		"it is found in PATH": {
			server: server{programs: map[string]string{"/usr/bin/cloud-hypervisor": ch53}},
			want:   Binary{Driver: CloudHypervisor, Path: "/usr/bin/cloud-hypervisor", Version: "53.0", Major: 53},
		},
		"a build between releases has a longer version": {
			server: server{programs: map[string]string{"/usr/bin/cloud-hypervisor": "cloud-hypervisor v53.0-246-gae44c297-dirty"}},
			want:   Binary{Driver: CloudHypervisor, Path: "/usr/bin/cloud-hypervisor", Version: "53.0-246-gae44c297-dirty", Major: 53},
		},
		"the floor is accepted with advice": {
			server: server{programs: map[string]string{"/usr/bin/cloud-hypervisor": "cloud-hypervisor v52.1"}},
			want: Binary{
				Driver: CloudHypervisor, Path: "/usr/bin/cloud-hypervisor", Version: "52.1", Major: 52, Minor: 1,
				Advice: "v53 or newer is preferred: it tells a missing VM from a failure and buffers the console",
			},
		},
		"one below the floor is refused with the reason": {
			server: server{programs: map[string]string{"/usr/bin/cloud-hypervisor": "cloud-hypervisor v51.1.0"}},
			fails:  []string{"version 51.1.0 is too old, 52.0 is needed", "--no-shutdown", "CVE-2026-45782"},
		},
		"an old one in PATH does not hide a new one elsewhere": {
			server: server{programs: map[string]string{
				"/usr/bin/cloud-hypervisor":     "cloud-hypervisor v40.0",
				"/usr/libexec/cloud-hypervisor": ch53,
			}},
			want: Binary{Driver: CloudHypervisor, Path: "/usr/libexec/cloud-hypervisor", Version: "53.0", Major: 53},
		},
		"the environment goes before PATH": {
			server: server{
				programs: map[string]string{"/usr/bin/cloud-hypervisor": ch53, "/x/ch": ch53},
				env:      map[string]string{"CLOUD_HYPERVISOR": "/x/ch"},
			},
			want: Binary{Driver: CloudHypervisor, Path: "/x/ch", Version: "53.0", Major: 53},
		},
		"a configured one goes before the environment": {
			server: server{
				programs: map[string]string{"/y/ch": ch53, "/x/ch": ch53},
				env:      map[string]string{"CLOUD_HYPERVISOR": "/x/ch"},
			},
			override: "/y/ch",
			want:     Binary{Driver: CloudHypervisor, Path: "/y/ch", Version: "53.0", Major: 53},
		},
		"a configured one that is missing is not replaced": {
			server:   server{programs: map[string]string{"/usr/bin/cloud-hypervisor": ch53}},
			override: "/y/ch",
			fails:    []string{"/y/ch: not there"},
		},
		"a configured name is looked up in PATH": {
			server:   server{},
			override: "my-ch",
			fails:    []string{"my-ch: not in PATH"},
		},
		"another program is not taken for it": {
			server: server{programs: map[string]string{"/usr/bin/cloud-hypervisor": "hello 53.0\n"}},
			fails:  []string{`--version says "hello 53.0", which is not cloud-hypervisor`},
		},
		"one that does not start is named": {
			server: server{programs: map[string]string{"/usr/bin/cloud-hypervisor": ""}},
			fails:  []string{"/usr/bin/cloud-hypervisor: exit status 1"},
		},
		"a file that is not executable is named": {
			server: server{files: map[string][]byte{"/usr/libexec/cloud-hypervisor": nil}},
			fails:  []string{"/usr/libexec/cloud-hypervisor: not executable", "PATH: no cloud-hypervisor"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.server.finder().CloudHypervisor(t.Context(), tc.override)
			checkError(t, err, tc.fails)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("binary (-want +got):\n%s", diff)
			}
		})
	}
}

// checkError wants a *NotFoundError holding all pieces, or no error if there are none.
func checkError(t *testing.T, err error, pieces []string) {
	t.Helper()
	if len(pieces) == 0 {
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	var missing *NotFoundError
	if !errors.As(err, &missing) {
		t.Fatalf("got error %v, want a *NotFoundError", err)
	}
	for _, piece := range pieces {
		if !strings.Contains(err.Error(), piece) {
			t.Errorf("error %q lacks %q", err, piece)
		}
	}
}

func TestFindQEMU(t *testing.T) {
	for name, tc := range map[string]struct {
		server server
		arch   string
		want   Binary
		fails  []string
	}{
		"the name follows the guests' architecture": {
			server: server{programs: map[string]string{"/usr/bin/qemu-system-aarch64": qemu72, "/usr/bin/qemu-system-x86_64": qemu72}},
			arch:   "arm64",
			want:   Binary{Driver: QEMU, Path: "/usr/bin/qemu-system-aarch64", Version: "7.2.22", Major: 7, Minor: 2},
		},
		"RHEL's name is known for the server's architecture": {
			server: server{programs: map[string]string{"/usr/libexec/qemu-kvm": "QEMU emulator version 9.1.0 (qemu-kvm-9.1.0-5.el9)\n"}},
			want:   Binary{Driver: QEMU, Path: "/usr/libexec/qemu-kvm", Version: "9.1.0", Major: 9, Minor: 1},
		},
		"RHEL's name is not taken for another architecture": {
			server: server{programs: map[string]string{"/usr/libexec/qemu-kvm": qemu72}},
			arch:   "arm64",
			fails:  []string{"PATH: no qemu-system-aarch64"},
		},
		"an old one is refused": {
			server: server{programs: map[string]string{"/usr/bin/qemu-system-x86_64": "QEMU emulator version 6.2.0"}},
			fails:  []string{"version 6.2.0 is too old, 7.0 is needed"},
		},
		"an unknown architecture is refused": {arch: "s390x", fails: []string{"guests are amd64 or arm64"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.server.finder().QEMU(t.Context(), tc.arch, "")
			checkError(t, err, tc.fails)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("binary (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAProgramThatHangsIsGivenUp(t *testing.T) {
	script := filepath.Join(t.TempDir(), "hang")
	// The sleep is a grandchild that keeps the output pipe open.
	if err := os.WriteFile(script, []byte("#!/bin/sh\nsleep 600 &\nwait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err := runVersion(ctx, script)
	if err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("got %v, want no answer", err)
	}
	if took := time.Since(begin); took > versionLimit {
		t.Errorf("gave up after %v", took)
	}
}

func TestFirmware(t *testing.T) {
	ovmf := map[string][]byte{"/usr/share/OVMF/OVMF_CODE_4M.fd": flash, "/usr/share/OVMF/OVMF_VARS_4M.fd": flash}
	for name, tc := range map[string]struct {
		files                  map[string][]byte
		driver, arch, override string
		want                   FirmwareFiles
		fails                  []string
	}{
		"Debian's package serves Cloud Hypervisor": {
			files: map[string][]byte{debianCLOUDHV: elf}, driver: CloudHypervisor, arch: "amd64",
			want: FirmwareFiles{Code: debianCLOUDHV},
		},
		"the upstream directory goes first": {
			files:  map[string][]byte{debianCLOUDHV: elf, "/usr/share/cloud-hypervisor/hypervisor-fw": elf},
			driver: CloudHypervisor, arch: "amd64",
			want: FirmwareFiles{Code: "/usr/share/cloud-hypervisor/hypervisor-fw"},
		},
		"arm64 has its own file name": {
			files:  map[string][]byte{"/usr/share/cloud-hypervisor/CLOUDHV_EFI.fd": flash, debianCLOUDHV: elf},
			driver: CloudHypervisor, arch: "arm64",
			want: FirmwareFiles{Code: "/usr/share/cloud-hypervisor/CLOUDHV_EFI.fd"},
		},
		"all places are in the error": {
			driver: CloudHypervisor, arch: "amd64",
			fails: []string{"/usr/share/cloud-hypervisor/CLOUDHV.fd: not there", debianCLOUDHV + ": not there"},
		},
		"firmware of QEMU is not taken for Cloud Hypervisor": {
			files: ovmf, driver: CloudHypervisor, arch: "amd64", override: "/usr/share/OVMF/OVMF_CODE_4M.fd",
			fails: []string{"not an ELF file"},
		},
		"a configured file is not replaced": {
			files: map[string][]byte{debianCLOUDHV: elf}, driver: CloudHypervisor, arch: "amd64", override: "/x.fd",
			fails: []string{"/x.fd: not there"},
		},
		"an empty file is no firmware": {
			files: map[string][]byte{debianCLOUDHV: nil}, driver: CloudHypervisor, arch: "amd64",
			fails: []string{"0 bytes are not the size of a firmware"},
		},
		"OVMF comes with its variable store": {
			files: ovmf, driver: QEMU, arch: "amd64",
			want: FirmwareFiles{Code: "/usr/share/OVMF/OVMF_CODE_4M.fd", Vars: "/usr/share/OVMF/OVMF_VARS_4M.fd"},
		},
		"OVMF without its variable store is passed over": {
			files:  map[string][]byte{"/usr/share/OVMF/OVMF_CODE_4M.fd": flash},
			driver: QEMU, arch: "amd64",
			fails: []string{"its variable store /usr/share/OVMF/OVMF_VARS_4M.fd: not there"},
		},
		"a configured OVMF finds the store beside it": {
			files: map[string][]byte{"/f/MY_CODE.fd": flash, "/f/MY_VARS.fd": flash}, driver: QEMU, arch: "amd64",
			override: "/f/MY_CODE.fd", want: FirmwareFiles{Code: "/f/MY_CODE.fd", Vars: "/f/MY_VARS.fd"},
		},
		"a configured OVMF may have no store": {
			files: map[string][]byte{"/f/OVMF.fd": flash}, driver: QEMU, arch: "amd64",
			override: "/f/OVMF.fd", want: FirmwareFiles{Code: "/f/OVMF.fd"},
		},
		"flash files are whole blocks": {
			files: map[string][]byte{"/f/OVMF.fd": make([]byte, 1<<20+1)}, driver: QEMU, arch: "amd64",
			override: "/f/OVMF.fd", fails: []string{"whole number of flash blocks"},
		},
		"arm64 guests of QEMU use AAVMF": {
			files:  map[string][]byte{"/usr/share/AAVMF/AAVMF_CODE.fd": flash, "/usr/share/AAVMF/AAVMF_VARS.fd": flash},
			driver: QEMU, arch: "arm64",
			want: FirmwareFiles{Code: "/usr/share/AAVMF/AAVMF_CODE.fd", Vars: "/usr/share/AAVMF/AAVMF_VARS.fd"},
		},
		"an unknown combination is refused": {driver: QEMU, arch: "s390x", fails: []string{"no such combination"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := server{files: tc.files}.finder().Firmware(tc.driver, tc.arch, tc.override)
			checkError(t, err, tc.fails)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("firmware (-want +got):\n%s", diff)
			}
		})
	}
}

// What Debian's packages put on a server must pass the checks made of it.
func TestFirmwareOfThisServer(t *testing.T) {
	if _, err := os.Stat("/usr/share/OVMF/OVMF_CODE_4M.fd"); err != nil {
		t.Skip("MISSING: Debian's ovmf package:", err)
	}
	got, err := Firmware(QEMU, "amd64", "")
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(got.Code)
	if err != nil || !bytes.Contains(content, []byte("_FVH")) {
		t.Errorf("%s is no UEFI firmware volume (%v)", got.Code, err)
	}
}
