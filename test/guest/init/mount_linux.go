// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func mountKernelFilesystems() error {
	var errs []error
	for _, m := range []struct{ kind, dir, opts string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"devtmpfs", "/dev", "mode=0755"},
		{"tmpfs", "/run", "mode=0755"},
		{"devpts", "/dev/pts", "gid=5,mode=620"},
		{"tmpfs", "/tmp", "mode=1777"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, unix.MS_NOSUID, m.opts); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.dir, err))
		}
	}
	return errors.Join(errs...)
}

// loadModules loads the files that list names, one a line, in order, from the list's own directory. Modules without
// their hardware refuse to load; that is normal and silent.
func (g *guest) loadModules(list string) {
	f, err := os.Open(list)
	if err != nil {
		g.fail("module list", err)
		return
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name := strings.TrimSpace(lines.Text())
		if name == "" {
			continue
		}
		err := loadModule(filepath.Join(filepath.Dir(list), name))
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			g.fail("load "+name, err)
		}
	}
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// waitForDisks waits while a SCSI or NVMe controller is there that has shown no disk yet. virtio-blk disks are
// complete when their module has loaded, so the usual guest does not wait.
func waitForDisks() {
	deadline := time.Now().Add(controllerWait)
	for time.Now().Before(deadline) {
		waiting := len(names("/sys/class/nvme")) > countDisks("nvme") ||
			(len(names("/sys/class/scsi_host")) > 0 && countDisks("sd") == 0)
		if !waiting {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func countDisks(prefix string) int {
	n := 0
	for _, name := range names("/sys/block") {
		if strings.HasPrefix(name, prefix) {
			n++
		}
	}
	return n
}
