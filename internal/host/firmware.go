// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// FirmwareFiles is the boot firmware for one driver and architecture.
type FirmwareFiles struct {
	Code string `json:"code"` // absolute path
	// Vars is the template of the variable store that belongs to Code, to be copied for each machine. Empty for
	// Cloud Hypervisor, which has none, and where none lies beside a configured file.
	Vars string `json:"vars,omitempty"`
}

// Plausible sizes in bytes. They catch empty files, error pages and disk images, not forgeries. hypervisor-fw has
// about 150 KiB, CLOUDHV.fd 4 MiB; QEMU takes flash files of whole 4 KiB blocks, on arm64 up to 64 MiB.
const (
	minFirmware = 64 << 10
	maxFirmware = 64 << 20
	flashBlock  = 4 << 10
)

// Firmware finds boot firmware on this server; see Finder.Firmware.
func Firmware(driver, arch, override string) (FirmwareFiles, error) {
	return Finder{}.Firmware(driver, arch, override)
}

// Firmware finds boot firmware for guests of an architecture (GOARCH; empty means the server's). A configured file
// is taken or refused, never replaced. Firmware is not exchangeable between the drivers: Cloud Hypervisor wants an
// ELF file with a PVH entry on amd64 and an image built for its own memory layout on arm64. The error is a
// *NotFoundError.
func (f Finder) Firmware(driver, arch, override string) (FirmwareFiles, error) {
	f = f.withDefaults()
	if arch == "" {
		arch = f.Arch
	}
	missing := &NotFoundError{What: fmt.Sprintf("firmware for %s on %s", driver, arch), Hint: firmwareHint(driver, arch)}
	places := firmwarePlaces(driver, arch)
	if override != "" {
		abs, err := filepath.Abs(override)
		if err != nil {
			return FirmwareFiles{}, fmt.Errorf("resolve firmware path: %w", err)
		}
		places = []FirmwareFiles{{Code: abs, Vars: f.varsBeside(driver, abs)}}
	}
	for _, p := range places {
		bad := f.checkFirmware(driver, arch, p.Code)
		if bad == "" && p.Vars != "" {
			if bad = f.checkSize(driver, p.Vars); bad != "" {
				bad = "its variable store " + p.Vars + ": " + bad
			}
		}
		if bad == "" {
			return p, nil
		}
		missing.Searched = append(missing.Searched, Searched{p.Code, bad})
	}
	if len(places) == 0 {
		missing.Searched = []Searched{{driver + "/" + arch, "no such combination is known"}}
	}
	return FirmwareFiles{}, missing
}

func firmwareHint(driver, arch string) string {
	switch driver + "/" + arch {
	case "cloud-hypervisor/amd64":
		return "install cloudhv-efi-x86-64 (Debian forky and later), or put CLOUDHV.fd of the cloud-hypervisor/edk2 " +
			"releases into /usr/share/cloud-hypervisor"
	case "cloud-hypervisor/arm64":
		return "put CLOUDHV_EFI.fd of the cloud-hypervisor/edk2 releases into /usr/share/cloud-hypervisor"
	case "qemu/amd64":
		return "apt-get install ovmf (Debian)"
	case "qemu/arm64":
		return "apt-get install qemu-efi-aarch64 (Debian)"
	default:
		return ""
	}
}

// firmwarePlaces lists where packages put firmware, best first. Files that enforce secure boot are left out: their
// variable stores hold the keys of one vendor, and guests of others would not start.
func firmwarePlaces(driver, arch string) []FirmwareFiles {
	code := func(files ...string) (all []FirmwareFiles) {
		for _, file := range files {
			all = append(all, FirmwareFiles{Code: file})
		}
		return all
	}
	pairs := func(dir string, files ...string) (all []FirmwareFiles) {
		for pair := range slices.Chunk(files, 2) {
			all = append(all, FirmwareFiles{Code: path.Join(dir, pair[0]), Vars: path.Join(dir, pair[1])})
		}
		return all
	}
	switch driver + "/" + arch {
	case "cloud-hypervisor/amd64":
		return code("/usr/share/cloud-hypervisor/CLOUDHV.fd", "/usr/share/cloud-hypervisor/hypervisor-fw",
			"/usr/share/cloudhv-efi-x86-64/CLOUDHV.fd")
	case "cloud-hypervisor/arm64":
		return code("/usr/share/cloud-hypervisor/CLOUDHV_EFI.fd", "/usr/share/cloud-hypervisor/hypervisor-fw",
			"/usr/share/cloud-hypervisor/hypervisor-fw-aarch64")
	case "qemu/amd64":
		return slices.Concat(
			pairs("/usr/share/OVMF", "OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd", "OVMF_CODE.fd", "OVMF_VARS.fd"), // Debian
			pairs("/usr/share/edk2/ovmf", "OVMF_CODE.fd", "OVMF_VARS.fd"),                                  // Fedora, RHEL
			pairs("/usr/share/edk2/x64", "OVMF_CODE.4m.fd", "OVMF_VARS.4m.fd"),                             // Arch
			pairs("/usr/share/qemu", "ovmf-x86_64-4m-code.bin", "ovmf-x86_64-4m-vars.bin", // SUSE
				"edk2-x86_64-code.fd", "edk2-i386-vars.fd"), // QEMU's own
			pairs("/opt/homebrew/share/qemu", "edk2-x86_64-code.fd", "edk2-i386-vars.fd"),
			pairs("/usr/local/share/qemu", "edk2-x86_64-code.fd", "edk2-i386-vars.fd"))
	case "qemu/arm64":
		return slices.Concat(
			pairs("/usr/share/AAVMF", "AAVMF_CODE.fd", "AAVMF_VARS.fd"), // Debian
			pairs("/usr/share/edk2/aarch64", "QEMU_EFI-pflash.raw", "vars-template-pflash.raw", // Fedora, RHEL
				"QEMU_CODE.fd", "QEMU_VARS.fd"), // Arch
			pairs("/usr/share/qemu", "aavmf-aarch64-code.bin", "aavmf-aarch64-vars.bin", // SUSE
				"edk2-aarch64-code.fd", "edk2-arm-vars.fd"), // QEMU's own
			pairs("/opt/homebrew/share/qemu", "edk2-aarch64-code.fd", "edk2-arm-vars.fd"),
			pairs("/usr/local/share/qemu", "edk2-aarch64-code.fd", "edk2-arm-vars.fd"))
	default:
		return nil
	}
}

// varsBeside finds the variable store of a configured code file by its name; none is fine.
func (f Finder) varsBeside(driver, code string) string {
	if driver != QEMU {
		return ""
	}
	dir, name := filepath.Split(code)
	vars := strings.NewReplacer("CODE", "VARS", "-code", "-vars").Replace(name)
	if vars == name || f.checkSize(driver, dir+vars) != "" {
		return ""
	}
	return dir + vars
}

func (f Finder) checkFirmware(driver, arch, file string) (bad string) {
	if bad := f.checkSize(driver, file); bad != "" || driver != CloudHypervisor {
		return bad
	}
	r, err := f.FS.Open(fsPath(file))
	if err != nil {
		return problem(err)
	}
	defer func() { _ = r.Close() }()
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return "read: " + err.Error()
	}
	isELF := bytes.Equal(head, []byte("\x7fELF"))
	if arch == "amd64" && !isELF {
		return "not an ELF file; firmware for QEMU (OVMF) does not work here"
	}
	return ""
}

func (f Finder) checkSize(driver, file string) (bad string) {
	info, err := f.stat(file)
	switch {
	case err != nil:
		return problem(err)
	case !info.Mode().IsRegular():
		return "not a file"
	case info.Size() < minFirmware, info.Size() > maxFirmware:
		return fmt.Sprintf("%d bytes are not the size of a firmware", info.Size())
	case driver == QEMU && info.Size()%flashBlock != 0:
		return fmt.Sprintf("%d bytes are no whole number of flash blocks (4096 bytes)", info.Size())
	default:
		return ""
	}
}
