// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// smallDisk mounts a file system of so many bytes.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("MISSING: leave to mount a small tmpfs (run as root): %v; the simulated full disk is tested all the same", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// hog fills a file system to the last byte; the returned function makes room again.
func hog(t *testing.T, dir string) func() {
	t.Helper()
	path := filepath.Join(dir, "hog")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for size := len(block); size > 0; {
		if n, err := f.Write(block[:size]); err != nil || n < size {
			size /= 2
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFullDiskForReal(t *testing.T) {
	dir := smallDisk(t, 4<<20)
	s := openWith(t, Options{Dir: filepath.Join(dir, "root"), hooks: hooks{reserve: 256 << 10}})
	for i := range 10 {
		create(t, s, fmt.Sprintf("first%d", i))
	}
	makeRoom := hog(t, dir)
	fillUp(t, s)
	checkFull(t, s, makeRoom)
}

func TestFullDiskAtEveryWrite(t *testing.T) {
	ctx := context.Background()
	dir := smallDisk(t, 4<<20)
	root := filepath.Join(dir, "root")
	s := openWith(t, Options{Dir: root, hooks: hooks{reserve: 128 << 10}})
	random := func(i int) []byte { return make([]byte, 1+(i%7)*9000) }
	refused, written := 0, 0
	for i := range 120 {
		id := fmt.Sprintf("m%d", i)
		before := s.List()
		makeRoom := hog(t, dir)
		m := testMachine(id)
		m.Desired.Ignition = random(i)
		_, err := s.Create(ctx, m)
		if err == nil {
			_, err = s.UpdateRecord(ctx, id, func(r *machine.Record) error { r.State = machine.Running; return nil })
		}
		if err != nil {
			wantKind(t, err, machine.Exhausted)
			refused++
		} else {
			written++
		}
		memory := s.List()
		if err != nil && len(memory) == len(before) {
			if !reflect.DeepEqual(before, memory) {
				t.Fatalf("write %d: refused, yet changed:\n%s", i, cmp.Diff(before, memory))
			}
		}
		if i%10 == 0 {
			if s = reopen(t, s); !reflect.DeepEqual(memory, s.List()) {
				t.Fatalf("write %d: disk differs from memory:\n%s", i, cmp.Diff(memory, s.List()))
			}
		}
		makeRoom()
		if len(memory) == len(before) {
			if _, err := s.Create(ctx, m); err != nil {
				t.Fatalf("write %d: there is room again, yet: %v", i, err)
			}
		}
		if i%3 == 0 {
			makeRoom := hog(t, dir)
			if err := s.Remove(ctx, id); err != nil {
				t.Fatalf("remove on a full disk: %v", err)
			}
			makeRoom()
		}
	}
	if refused == 0 || written == 0 {
		t.Errorf("refused %d, written %d: want some of both", refused, written)
	}
	t.Logf("refused %d, written %d", refused, written)
}
