// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fill puts files where programs would be.
func fill(t *testing.T, s Set, but string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(s.dir, manifestDir), 0o750); err != nil {
		t.Fatal(err)
	}
	for _, p := range all() {
		if p.name == but {
			continue
		}
		if err := os.WriteFile(s.Path(p.name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOnlyACompleteSetIsTaken(t *testing.T) {
	o := Options{CacheDir: t.TempDir()}
	b, err := newBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := Cached(o); ok {
		t.Error("an empty cache has everything")
	}
	fill(t, b.set(), KubeAPIServer)
	if _, ok := Cached(o); ok {
		t.Error("a program is missing and nobody misses it")
	}
	fill(t, b.set(), "")
	s, ok := Cached(o)
	if !ok || !strings.HasPrefix(s.Path(Etcd), o.CacheDir) {
		t.Errorf("%v, %v", s, ok)
	}
	if built, err := Build(t.Context(), o); err != nil || built != s {
		t.Errorf("built %v, %v", built, err)
	}
}

func TestWhoComesSecondWaitsForTheFirst(t *testing.T) {
	told := make(chan string, 1)
	o := Options{CacheDir: t.TempDir(), Say: func(line string) { told <- line }}
	first, err := newBuilder(o)
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := first.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := Build(ctx, o)
		ended <- err
	}()
	if line := <-told; !strings.Contains(line, "another process") {
		t.Errorf("it says %q", line)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	go func() {
		_, err := Build(t.Context(), o)
		ended <- err
	}()
	<-told
	fill(t, first.set(), "") // what the first one builds
	unlock()
	if err := <-ended; err != nil {
		t.Errorf("after the first one is done: %v", err)
	}
}

func TestProgramsThatNobodyUsesAreRemoved(t *testing.T) {
	b, err := newBuilder(Options{CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	old, young, foreign := "0123456789abcdef", "fedcba9876543210", "of-somebody-else"
	for _, name := range []string{old, young, foreign, b.key} {
		dir := filepath.Join(b.cache, name)
		if err := os.Mkdir(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		if when := time.Now().Add(-unusedFor - time.Hour); name != young {
			if err := os.Chtimes(dir, when, when); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.prune()
	for name, want := range map[string]bool{old: false, young: true, foreign: true, b.key: true} {
		if _, err := os.Stat(filepath.Join(b.cache, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
