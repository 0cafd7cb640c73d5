// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestStorageOfATemporaryDirectory(t *testing.T) {
	dir := t.TempDir()
	s, err := ProbeStorage(t.Context(), filepath.Join(dir, "not", "yet"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", s)
	if s.Probed != dir {
		t.Errorf("probed %s, want the nearest parent %s", s.Probed, dir)
	}
	if s.TotalBytes == 0 || s.FreeBytes > s.TotalBytes || s.Filesystem == "" || !s.Fsync.OK {
		t.Errorf("implausible: %+v", s)
	}
	for name, trial := range map[string]Trial{"reflink": s.Reflink, "O_DIRECT": s.DirectIO} {
		if trial.OK == (trial.Reason != "") {
			t.Errorf("%s: ok=%v with reason %q", name, trial.OK, trial.Reason)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestStorageOfAFileIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ProbeStorage(t.Context(), file); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("got %v", err)
	}
}

func TestStorageIsNotTouchedAfterTheDeadline(t *testing.T) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if _, err := ProbeStorage(ctx, t.TempDir()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// The kernel is asked whether the limit is right: the longest path must bind, one byte more must not.
func TestSocketPathLimitIsTheKernels(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("MISSING: a known limit on", runtime.GOOS)
	}
	dir, err := os.MkdirTemp("/tmp", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for extra, fits := range map[int]bool{0: true, 1: false} {
		path := filepath.Join(dir, strings.Repeat("x", SocketPathRoom(dir)+extra))
		if err := CheckSocketPath(path); (err == nil) != fits {
			t.Errorf("%d bytes: got %v, want fitting: %v", len(path), err, fits)
		}
		l, err := net.Listen("unix", path)
		if (err == nil) != fits {
			t.Errorf("bind %d bytes: %v, want fitting: %v", len(path), err, fits)
		}
		if err == nil {
			l.Close()
		}
	}
}
