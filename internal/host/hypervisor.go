// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Version floors. Cloud Hypervisor v52 is the first with --no-shutdown, without which a guest that powers off takes
// its VMM with it and cannot be told from a crash, and with the fix of CVE-2026-45782 (use after free in
// virtio-block). v53 answers 404 for a VM that was not created and buffers the serial socket. QEMU 7.0 is the oldest
// whose QMP the driver was written for.
const (
	FloorCloudHypervisor     = 52
	PreferredCloudHypervisor = 53
	FloorQEMU                = 7

	// EnvCloudHypervisor names a binary to use where the configuration names none.
	EnvCloudHypervisor = "CLOUD_HYPERVISOR"
)

// Binary is a hypervisor found on this server, not older than its floor.
type Binary struct {
	Driver  string `json:"driver"` // CloudHypervisor or QEMU
	Path    string `json:"path"`   // absolute
	Version string `json:"version"`
	Major   int    `json:"major"`
	Minor   int    `json:"minor"`
	Advice  string `json:"advice,omitempty"` // set if a newer one is preferred
}

// product is what differs between the hypervisors when looking for them.
type product struct {
	driver     string
	floor      int
	why        string // of the floor
	pattern    *regexp.Regexp
	candidates []candidate
	hint       string
}

type candidate struct {
	path    string
	problem string // set if the place is known to be empty
}

// FindCloudHypervisor finds a Cloud Hypervisor on this server; see Finder.CloudHypervisor.
func FindCloudHypervisor(ctx context.Context, override string) (Binary, error) {
	return Finder{}.CloudHypervisor(ctx, override)
}

// FindQEMU finds a QEMU on this server; see Finder.QEMU.
func FindQEMU(ctx context.Context, arch, override string) (Binary, error) {
	return Finder{}.QEMU(ctx, arch, override)
}

// CloudHypervisor finds the binary: override, else $CLOUD_HYPERVISOR, else PATH and the usual directories. A named
// one (by override or environment) is taken or refused, never replaced. The error is a *NotFoundError.
func (f Finder) CloudHypervisor(ctx context.Context, override string) (Binary, error) {
	f = f.withDefaults()
	p := product{
		driver: CloudHypervisor, floor: FloorCloudHypervisor,
		why:     "it lacks --no-shutdown and the fix of CVE-2026-45782",
		pattern: regexp.MustCompile(`(?m)^cloud-hypervisor v?((\d+)\.(\d+)\S*)`),
		hint:    "install Cloud Hypervisor v53 or newer, or name the binary in the configuration or $" + EnvCloudHypervisor,
	}
	switch env := f.Getenv(EnvCloudHypervisor); {
	case override != "":
		p.candidates = []candidate{f.named(override)}
	case env != "":
		p.candidates = []candidate{f.named(env)}
	default:
		p.candidates = f.unnamed([]string{"cloud-hypervisor"}, []string{
			"/usr/local/bin/cloud-hypervisor", "/usr/bin/cloud-hypervisor", "/usr/libexec/cloud-hypervisor",
			"/usr/libexec/cloud-hypervisor/cloud-hypervisor", "/usr/lib/cloud-hypervisor/cloud-hypervisor",
			"/opt/cloud-hypervisor/bin/cloud-hypervisor",
		})
	}
	b, err := f.first(ctx, p)
	if err == nil && b.Major < PreferredCloudHypervisor {
		b.Advice = fmt.Sprintf("v%d or newer is preferred: it tells a missing VM from a failure and buffers the "+
			"console", PreferredCloudHypervisor)
	}
	return b, err
}

// QEMU finds the system emulator for guests of an architecture (GOARCH; empty means the server's): override, else
// PATH and the usual directories. The error is a *NotFoundError.
func (f Finder) QEMU(ctx context.Context, arch, override string) (Binary, error) {
	f = f.withDefaults()
	if arch == "" {
		arch = f.Arch
	}
	p := product{
		driver: QEMU, floor: FloorQEMU, why: "its QMP lacks what the driver uses",
		pattern: regexp.MustCompile(`(?m)^QEMU emulator version ((\d+)\.(\d+)\S*)`),
	}
	name, pkg := "qemu-system-x86_64", "qemu-system-x86"
	switch arch {
	case "amd64":
	case "arm64":
		name, pkg = "qemu-system-aarch64", "qemu-system-arm"
	default:
		return Binary{}, &NotFoundError{What: "qemu binary", Searched: []Searched{{
			"architecture " + arch, "guests are amd64 or arm64",
		}}}
	}
	p.hint = "install it: apt-get install " + pkg + " (Debian), brew install qemu (macOS)"
	if override != "" {
		p.candidates = []candidate{f.named(override)}
	} else {
		usual := []string{"/usr/bin/" + name, "/usr/local/bin/" + name, "/opt/homebrew/bin/" + name}
		if arch == f.Arch {
			usual = append(usual, "/usr/libexec/qemu-kvm") // RHEL and its relatives: the server's architecture only
		}
		p.candidates = f.unnamed([]string{name}, usual)
	}
	return f.first(ctx, p)
}

// named resolves a binary a person named: a path, or a name to be looked up in PATH.
func (f Finder) named(name string) candidate {
	if !strings.ContainsRune(name, '/') {
		path, err := f.LookPath(name)
		if err != nil {
			return candidate{name, "not in PATH"}
		}
		name = path
	}
	abs, err := filepath.Abs(name)
	if err != nil {
		return candidate{name, err.Error()}
	}
	return candidate{path: abs}
}

// unnamed lists what PATH gives for the names, then the usual places, each once.
func (f Finder) unnamed(names, usual []string) []candidate {
	var all []candidate
	seen := map[string]bool{}
	for _, name := range names {
		c := f.named(name)
		if c.problem != "" {
			c = candidate{"PATH", "no " + name}
		}
		seen[c.path] = true
		all = append(all, c)
	}
	for _, path := range usual {
		if !seen[path] {
			seen[path] = true
			all = append(all, candidate{path: path})
		}
	}
	return all
}

// first returns the first candidate that is there, answers and is new enough.
func (f Finder) first(ctx context.Context, p product) (Binary, error) {
	missing := &NotFoundError{What: p.driver + " binary", Hint: p.hint}
	for _, c := range p.candidates {
		if c.problem == "" {
			b, what := f.examine(ctx, p, c.path)
			if what == "" {
				return b, nil
			}
			c.problem = what
		}
		missing.Searched = append(missing.Searched, Searched{c.path, c.problem})
	}
	return Binary{}, missing
}

func (f Finder) examine(ctx context.Context, p product, path string) (b Binary, problemFound string) {
	info, err := f.stat(path)
	switch {
	case err != nil:
		return Binary{}, problem(err)
	case !info.Mode().IsRegular():
		return Binary{}, "not a file"
	case info.Mode().Perm()&0o111 == 0:
		return Binary{}, "not executable"
	}
	out, err := f.Version(ctx, path)
	if err != nil {
		return Binary{}, err.Error()
	}
	m := p.pattern.FindStringSubmatch(out)
	if m == nil {
		line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
		return Binary{}, fmt.Sprintf("--version says %q, which is not %s", line, p.driver)
	}
	b = Binary{Driver: p.driver, Path: path, Version: m[1]}
	b.Major, _ = strconv.Atoi(m[2]) // digits by the pattern; an absurd number becomes the largest int
	b.Minor, _ = strconv.Atoi(m[3])
	if b.Major < p.floor {
		return Binary{}, fmt.Sprintf("version %s is too old, %d.0 is needed: %s", b.Version, p.floor, p.why)
	}
	return b, ""
}
