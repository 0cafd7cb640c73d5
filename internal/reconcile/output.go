// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// vmmOutput is the file in a machine's directory that takes what its VMM prints.
const vmmOutput = "vmm.log"

// Bounds of a log file that a VMM writes, in bytes. A guest can make its VMM complain without end.
const (
	maxOutput  = 8 << 20
	keptOutput = 1 << 20 // of it, the end, when it is emptied
)

// capOutput bounds the log files that VMMs have open in a machine's directory. They are emptied and not replaced,
// since a VMM goes on writing to the file it has; the end of what was there is kept beside it.
func (r *Reconciler) capOutput(id string) {
	logs, err := filepath.Glob(filepath.Join(r.o.machineDir(id), "*.log"))
	if err != nil {
		return
	}
	for _, path := range logs {
		if path == r.o.consoleLog(id) {
			continue // has its own cap
		}
		if err := emptyIfLarge(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.o.Logger.Warn("log of the VMM is not bounded", "machine", id, "error", err)
		}
	}
}

func emptyIfLarge(path string) error {
	info, err := os.Stat(path)
	if err != nil || allocated(info) <= maxOutput {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	kept := make([]byte, keptOutput)
	n, err := f.ReadAt(kept, max(0, info.Size()-keptOutput))
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the end of %s: %w", path, err)
	}
	if err := os.WriteFile(path+".old", kept[:n], 0o640); err != nil {
		return fmt.Errorf("keep the end of %s: %w", path, errors.Join(err, f.Truncate(0))) // a full disk needs it most
	}
	return f.Truncate(0)
}

// lastOutput returns the last lines that a VMM printed, for an event; "" if it printed none.
func lastOutput(path string) string {
	const most = 512 // bytes
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	raw, _ := io.ReadAll(io.LimitReader(f, most))
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if len(lines) > 3 {
		lines = lines[len(lines)-3:]
	}
	return strings.ToValidUTF8(strings.Join(lines, " | "), "?")
}

// printed puts the last output behind a sentence.
func printed(output string) string {
	if output == "" {
		return ""
	}
	return "; it printed: " + output
}
