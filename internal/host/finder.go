// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Names of the two drivers and of the values of "hypervisor" and "accelerator".
const (
	Auto            = "auto"
	CloudHypervisor = "cloud-hypervisor"
	QEMU            = "qemu"

	AccelKVM = "kvm"
	AccelHVF = "hvf"
	AccelTCG = "tcg" // QEMU's own translation, no hardware help
)

// Finder looks for hypervisors, firmware and accelerators. The zero value looks at this server; tests put in their
// own. Its methods keep nothing, so a caller that wants an answer twice asks once and stores it.
type Finder struct {
	FS       fs.FS                                                    // root; nil: the real root
	Getenv   func(key string) string                                  // nil: os.Getenv
	LookPath func(file string) (string, error)                        // nil: exec.LookPath
	Version  func(ctx context.Context, binary string) (string, error) // nil: output of "binary --version"
	KVM      func(ctx context.Context) KVM                            // nil: ProbeKVM
	HVF      func() (ok bool, reason string)                          // nil: ask the operating system
	OS       string                                                   // empty: GOOS
	Arch     string                                                   // empty: GOARCH
}

func (f Finder) withDefaults() Finder {
	if f.FS == nil {
		f.FS = os.DirFS("/")
	}
	if f.Getenv == nil {
		f.Getenv = os.Getenv
	}
	if f.LookPath == nil {
		f.LookPath = exec.LookPath
	}
	if f.Version == nil {
		f.Version = runVersion
	}
	if f.KVM == nil {
		f.KVM = ProbeKVM
	}
	if f.HVF == nil {
		f.HVF = hvfSupported
	}
	if f.OS == "" {
		f.OS = runtime.GOOS
	}
	if f.Arch == "" {
		f.Arch = runtime.GOARCH
	}
	return f
}

// Searched is a place that was looked at in vain.
type Searched struct {
	Path    string `json:"path"`
	Problem string `json:"problem"`
}

// NotFoundError says that something is not on this server in a usable form, and where it was looked for.
type NotFoundError struct {
	What     string // such as "cloud-hypervisor binary"
	Searched []Searched
	Hint     string // how to get it; may be empty
}

// Error lists all places with what is wrong with each.
func (e *NotFoundError) Error() string {
	places := make([]string, len(e.Searched))
	for i, s := range e.Searched {
		places[i] = s.Path + ": " + s.Problem
	}
	return "no usable " + e.What + " (" + strings.Join(places, "; ") + ")"
}

// versionLimit is generous: starting a program on a very busy server is what takes the time.
const versionLimit = 10 * time.Second

func runVersion(ctx context.Context, binary string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, "--version")
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // a grandchild that keeps the pipe open must not keep us
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("run %s --version: no answer: %w", binary, context.Cause(ctx))
		}
		return "", fmt.Errorf("run %s --version: %w", binary, err)
	}
	return out.String(), nil
}

// stat looks at an absolute path below the root of the finder.
func (f Finder) stat(path string) (fs.FileInfo, error) {
	return fs.Stat(f.FS, fsPath(path))
}

func fsPath(path string) string {
	if p := strings.TrimPrefix(filepath.ToSlash(filepath.Clean(path)), "/"); p != "" {
		return p
	}
	return "."
}

// problem puts an error of stat or open in a few words; the path is named beside it already.
func problem(err error) string {
	switch {
	case os.IsNotExist(err):
		return "not there"
	case os.IsPermission(err):
		return "no permission"
	default:
		return err.Error()
	}
}
