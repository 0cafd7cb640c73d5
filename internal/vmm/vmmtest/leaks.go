// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmmtest

import (
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// leaks lives many lives with one driver and looks for what stays: descriptors, goroutines, files.
func leaks(t *testing.T, s Setup) {
	driver := s.Driver(t)
	s.Driver = func(*testing.T) vmm.Driver { return driver }
	life := func(t *testing.T) { oneLife(newBench(t, s)) }
	// What is made once for ever is made in the first life.
	t.Run("first life", life)
	descriptors, goroutines := openDescriptors(), runtime.NumGoroutine()
	for range s.Lifecycles {
		if !t.Run("life", life) {
			return
		}
	}
	deadline := time.Now().Add(s.Patience)
	for {
		fds, n := openDescriptors(), runtime.NumGoroutine()
		if len(fds) <= len(descriptors) && n <= goroutines {
			return
		}
		if time.Now().After(deadline) {
			stack := make([]byte, 64<<10)
			t.Fatalf("after %d lives there are %d goroutines, before there were %d\ndescriptors before:\n%s\nafter:\n%s\n%s",
				s.Lifecycles, n, goroutines, strings.Join(descriptors, "\n"), strings.Join(fds, "\n"), stack[:runtime.Stack(stack, true)])
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// oneLife does not wait for the guest, which may take long.
func oneLife(b *bench) {
	before := filesBelow(b.T, filepath.Dir(b.cfg.StateDir))
	b.start()
	b.must("boot", b.vm.Boot(b.ctx()))
	b.must("power off", b.vm.PowerOff(b.ctx()))
	b.must("shut down", b.vm.Shutdown(b.ctx()))
	b.awaitEnd()
	b.disconnect()
	b.must("clean up", b.driver.Cleanup(b.ctx(), b.cfg.Ref))
	for _, f := range filesBelow(b.T, b.cfg.RuntimeDir) {
		b.Errorf("left in the runtime directory: %s", f)
	}
	// The state directory may keep logs, but not one more for each life.
	const fewLogs = 4
	if after := filesBelow(b.T, b.cfg.StateDir); len(after) > len(before)+fewLogs {
		b.Errorf("left in the state directory: %v", after)
	}
}

func filesBelow(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err):
			return nil
		case err != nil:
			return err
		case !d.IsDir():
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// openDescriptors lists what this process has open; nothing where there is no /proc.
func openDescriptors() []string {
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return nil
	}
	var open []string
	for _, l := range links {
		if target, err := os.Readlink(l); err == nil {
			open = append(open, target)
		}
	}
	sort.Strings(open)
	return open
}
