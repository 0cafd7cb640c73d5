// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

func digestOf(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(data)
}

// kernelTreeOf returns an unpacked kernel package of the shared cache.
func kernelTreeOf(t *testing.T, files guest.Files) string {
	t.Helper()
	trees, err := filepath.Glob(filepath.Join(guest.DefaultCacheDir(), "packages/trees", "linux-image-"+files.KernelVersion+"_*"))
	if err != nil || len(trees) == 0 {
		t.Fatalf("no kernel tree: %v", err)
	}
	return trees[0]
}

func TestConcurrentBuildsGiveOneGuestWithTheBytesOfAnotherCachesGuest(t *testing.T) {
	reference := builtGuest(t)
	options := guest.Options{CacheDir: t.TempDir(), Arch: "amd64", KernelTree: kernelTreeOf(t, reference)}
	leftover := filepath.Join(options.CacheDir, "guests", "tmp-killed")
	if err := os.MkdirAll(leftover, 0o750); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	results := make([]guest.Files, 3)
	for i := range results {
		wg.Go(func() {
			files, err := guest.Build(ctx, options)
			if err != nil {
				t.Error(err)
			}
			results[i] = files
		})
	}
	wg.Wait()
	if results[0] != results[1] || results[1] != results[2] {
		t.Errorf("concurrent builds differ: %+v", results)
	}
	if _, err := os.Stat(leftover); err == nil {
		t.Error("what a killed build left is still there")
	}
	for _, pair := range [][2]string{
		{reference.Kernel, results[0].Kernel},
		{reference.VMLinux, results[0].VMLinux},
		{reference.Initramfs, results[0].Initramfs},
		{reference.RootDisk, results[0].RootDisk},
	} {
		if digestOf(t, pair[0]) != digestOf(t, pair[1]) {
			t.Errorf("%s and %s differ", pair[0], pair[1])
		}
	}
}

func TestBuildSaysWhatIsWrong(t *testing.T) {
	empty := t.TempDir()
	for name, c := range map[string]struct {
		options guest.Options
		want    string
	}{
		"no cache directory":            {guest.Options{}, "no cache directory"},
		"an unknown architecture":       {guest.Options{CacheDir: t.TempDir(), Arch: "sparc"}, `"sparc" is neither`},
		"a root disk that is too small": {guest.Options{CacheDir: t.TempDir(), RootBytes: 1 << 20}, "at least"},
		"a kernel tree without kernel": {
			guest.Options{CacheDir: t.TempDir(), Arch: "amd64", KernelTree: empty}, "0 kernels",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := guest.Build(t.Context(), c.options)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestAMissingPackageIsNamedWithTheCommandThatHelps(t *testing.T) {
	reference := builtGuest(t)
	t.Setenv("PATH", t.TempDir()) // a host without apt-get
	_, err := guest.Build(t.Context(), guest.Options{CacheDir: t.TempDir(), Arch: "amd64"})
	if err == nil || !strings.Contains(err.Error(), "linux-image-cloud-amd64") || !strings.Contains(err.Error(), "run: ") {
		t.Errorf("error %v", err)
	}
	_, err = guest.Build(t.Context(), guest.Options{CacheDir: t.TempDir(), Arch: "amd64", KernelTree: kernelTreeOf(t, reference)})
	if err == nil || !strings.Contains(err.Error(), "run: apt-get install ") {
		t.Errorf("error %v", err)
	}
}
