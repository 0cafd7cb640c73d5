// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Spec describes a process to start.
type Spec struct {
	// Name is a unit-safe name such as "chp-vmm-<machine id>"; Systemd starts
	// Name.service.
	Name string
	// Marker is unique for state root and machine; it reaches the process as
	// MarkerEnv.
	Marker string
	// Argv is program and arguments. A program without a slash is searched in
	// PATH. Secrets do not belong here: every user can read them.
	Argv []string
	// Env is the complete environment ("KEY=value") besides the marker; the
	// daemon's own is not inherited.
	Env []string
	// Dir is the working directory, "/" when empty.
	Dir string
	// Output is the absolute path of the file that gets stdout and stderr; it
	// is created with mode 0640 and appended to. Empty means /dev/null.
	Output string
	// LimitNOFILE is the limit of open files (soft and hard), 0 leaves the
	// inherited one.
	LimitNOFILE uint64
	// MemoryMax limits the cgroup in bytes, 0 means none. Systemd only.
	MemoryMax int64
	// Slice is the slice of the unit, DefaultSlice when empty. Systemd only.
	Slice string
}

// DefaultSlice holds the VMMs: systemd.special(7) gives it to virtual machines,
// so that they share the host with its services as one group.
const DefaultSlice = "machine.slice"

// unitName is what systemd accepts as unit name prefix without escaping, less
// the characters that mean something to it ("@", ":", "\").
var unitName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$`)

// Validate checks the description and returns an error of kind ErrInvalid
// that names the field.
func (s Spec) Validate() error {
	switch {
	case !unitName.MatchString(s.Name):
		return fmt.Errorf("%w: Name %q is not unit-safe", ErrInvalid, s.Name)
	case s.Marker == "":
		return fmt.Errorf("%w: Marker is empty", ErrInvalid)
	case len(s.Argv) == 0 || s.Argv[0] == "":
		return fmt.Errorf("%w: Argv names no program", ErrInvalid)
	case s.Dir != "" && !filepath.IsAbs(s.Dir):
		return fmt.Errorf("%w: Dir %q is not absolute", ErrInvalid, s.Dir)
	case s.Output != "" && !filepath.IsAbs(s.Output):
		return fmt.Errorf("%w: Output %q is not absolute", ErrInvalid, s.Output)
	case s.MemoryMax < 0:
		return fmt.Errorf("%w: MemoryMax %d is negative", ErrInvalid, s.MemoryMax)
	}
	for _, kv := range s.Env {
		key, _, ok := strings.Cut(kv, "=")
		if !ok || key == "" {
			return fmt.Errorf("%w: Env entry %q is not KEY=value", ErrInvalid, kv)
		}
		if key == MarkerEnv {
			return fmt.Errorf("%w: Env sets %s, which belongs to Marker", ErrInvalid, MarkerEnv)
		}
	}
	for _, list := range [][]string{s.Argv, s.Env, {s.Marker, s.Dir, s.Output}} {
		for _, v := range list {
			if strings.ContainsRune(v, 0) {
				return fmt.Errorf("%w: a NUL byte in %q", ErrInvalid, v)
			}
		}
	}
	return nil
}

// program resolves Argv[0] to an absolute path, so that the working directory
// of the process cannot change which file is run.
func (s Spec) program() (string, error) {
	path, err := exec.LookPath(s.Argv[0])
	if err != nil {
		return "", fmt.Errorf("find program %q: %w", s.Argv[0], err)
	}
	return filepath.Abs(path)
}

// environ is the complete environment of the process.
func (s Spec) environ() []string {
	return append(append([]string(nil), s.Env...), MarkerEnv+"="+s.Marker)
}

func (s Spec) dir() string {
	if s.Dir == "" {
		return "/"
	}
	return s.Dir
}

// openOutput opens the output file, or /dev/null when none is wanted.
func (s Spec) openOutput() (*os.File, error) {
	if s.Output == "" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	f, err := os.OpenFile(s.Output, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open output of %s: %w", s.Name, err)
	}
	return f, nil
}

func (id Identity) validate() error {
	switch {
	case id.PID <= 1:
		return fmt.Errorf("%w: identity with pid %d", ErrInvalid, id.PID)
	case id.StartTicks == 0:
		return fmt.Errorf("%w: identity of pid %d without start time", ErrInvalid, id.PID)
	case id.BootID == "":
		return fmt.Errorf("%w: identity of pid %d without boot id", ErrInvalid, id.PID)
	case id.Marker == "":
		return fmt.Errorf("%w: identity of pid %d without marker", ErrInvalid, id.PID)
	}
	return nil
}
