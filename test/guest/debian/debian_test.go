// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeApt puts an apt-get first on PATH that "downloads" a real package made here and notes each call.
func fakeApt(t *testing.T) (calls string) {
	t.Helper()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("SKIPPED: dpkg-deb is not on this host: unpacking packages was NOT tested")
	}
	dir := t.TempDir()
	write := func(name, text string, perm os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), perm); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("root/DEBIAN/control", "Package: tool\nVersion: 1:2.0-1\nArchitecture: all\nMaintainer: a <a@example.org>\n"+
		"Depends: other (= 1)\nDescription: x\n", 0o644)
	write("root/usr/bin/tool", "content", 0o755)
	deb := filepath.Join(dir, "tool.deb")
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "-b", filepath.Join(dir, "root"), deb).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v: %s", err, out)
	}
	calls = filepath.Join(dir, "calls")
	write("bin/apt-get", fmt.Sprintf(`#!/bin/sh
for name; do :; done
echo "$name" >> %s
if [ "$name" = absent ]; then echo "E: Unable to locate package absent" >&2; exit 100; fi
if [ "$name" = hangs ]; then exec sleep 600; fi
cp %s tool_1%%3a2.0-1_all.deb
`, calls, deb), 0o755)
	write("bin/dpkg", "#!/bin/sh\necho amd64\n", 0o755)
	t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	return calls
}

func newCache(t *testing.T, o Options) *Cache {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	o.Arch = "amd64"
	c, err := NewCache(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAPackageIsDownloadedOnceByAllWhoWantIt(t *testing.T) {
	calls := fakeApt(t)
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "tmp-killed"), 0o750); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c, err := NewCache(Options{Dir: dir, Arch: "amd64"})
			if err != nil {
				t.Error(err)
				return
			}
			p, err := c.Tree(t.Context(), "tool")
			if err != nil {
				t.Error(err)
				return
			}
			if p.Version != "1:2.0-1" {
				t.Errorf("version %q", p.Version)
			}
			if data, err := os.ReadFile(filepath.Join(p.Tree, "usr/bin/tool")); err != nil || string(data) != "content" {
				t.Errorf("file of the package: %q, %v", data, err)
			}
			if depends, err := c.Depends(t.Context(), p); err != nil || depends != "other (= 1)" {
				t.Errorf("depends %q, %v", depends, err)
			}
		})
	}
	wg.Wait()
	if got, _ := os.ReadFile(calls); string(got) != "tool\n" {
		t.Errorf("apt-get was called for %q, want once", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "tmp-killed")); err == nil {
		t.Error("what a killed run left is still there")
	}
}

func TestAnUnknownPackageIsAMissingError(t *testing.T) {
	fakeApt(t)
	_, err := newCache(t, Options{}).Tree(t.Context(), "absent")
	var missing *MissingError
	if !errors.As(err, &missing) || missing.Package != "absent" || missing.Command != "apt-get update" {
		t.Errorf("error %v", err)
	}
}

func TestACommandThatHangsIsEnded(t *testing.T) {
	fakeApt(t)
	_, err := newCache(t, Options{Timeout: time.Second}).Tree(t.Context(), "hangs")
	if err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		t.Errorf("error %v", err)
	}
}

func TestNamesThatAreNoPackagesAreRefused(t *testing.T) {
	c := newCache(t, Options{})
	for _, name := range []string{"", "-o", "../x", "A", "a b"} {
		if _, err := c.Tree(t.Context(), name); err == nil {
			t.Errorf("%q is taken for a package", name)
		}
	}
	if _, err := NewCache(Options{Dir: t.TempDir(), Arch: "-x"}); err == nil {
		t.Error("an option is taken for an architecture")
	}
}

func TestALockIsWaitedForUntilTheContextEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*lockPoll)
	defer cancel()
	if _, err := Lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	unlock()
	unlock, err = Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
