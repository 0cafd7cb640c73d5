// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

type fakeClock struct {
	mu  sync.Mutex
	now time.Time // guarded by mu
}

func newFakeClock() *fakeClock { return &fakeClock{now: time.Now()} }

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// harness is a cache under test with its registry, clock and events.
type harness struct {
	*Cache
	t      *testing.T
	reg    *testRegistry
	clock  *fakeClock
	dir    string
	events chan Event
}

// start makes a cache for registry reg; mod may change its options.
func start(t *testing.T, reg *testRegistry, dir string, mod func(*Options)) *harness {
	t.Helper()
	h := &harness{t: t, reg: reg, clock: newFakeClock(), dir: dir, events: make(chan Event, 10000)}
	o := Options{
		Dir: dir, PlainHTTP: []string{reg.host()}, Clock: h.clock, Observer: func(e Event) { h.events <- e },
		Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		Logger:   slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if mod != nil {
		mod(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	h.Cache = c
	t.Cleanup(c.Close)
	return h
}

func plainRegistry(t *testing.T) *testRegistry { return newTestRegistry(t, httptest.NewServer) }

// ended waits for the end of a pull.
func (h *harness) ended() Event {
	h.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e := <-h.events:
			if e.Kind == PullSucceeded || e.Kind == PullFailed {
				return e
			}
		case <-deadline:
			h.t.Fatal("no end of the pull in time")
		}
	}
}

// mustPull asks for an image that is not there yet and returns it once pulled.
func (h *harness) mustPull(ref string) *Image {
	h.t.Helper()
	var pulling *PullingError
	if _, err := h.Get(context.Background(), ref); !errors.As(err, &pulling) {
		h.t.Fatalf("Get(%s) = %v, want *PullingError", ref, err)
	}
	if e := h.ended(); e.Kind != PullSucceeded {
		h.t.Fatalf("pull of %s ended with %v: %v", ref, e.Kind, e.Err)
	}
	img, err := h.Get(context.Background(), ref)
	if err != nil {
		h.t.Fatalf("Get(%s) after the pull: %v", ref, err)
	}
	return img
}

// mustFail starts a pull and returns how it failed.
func (h *harness) mustFail(ref string) *PullFailedError {
	h.t.Helper()
	var pulling *PullingError
	if _, err := h.Get(context.Background(), ref); !errors.As(err, &pulling) {
		h.t.Fatalf("Get(%s) = %v, want *PullingError", ref, err)
	}
	e := h.ended()
	if e.Kind != PullFailed {
		h.t.Fatalf("pull of %s ended with %v, want PullFailed", ref, e.Kind)
	}
	var failed *PullFailedError
	if !errors.As(e.Err, &failed) {
		h.t.Fatalf("event error is %T, want *PullFailedError", e.Err)
	}
	return failed
}

func noise(seed uint64, n int) []byte {
	src := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	b := make([]byte, n)
	_, _ = src.Read(b)
	return b
}

func contents(t *testing.T, b *Blob) []byte {
	t.Helper()
	if b == nil {
		return nil
	}
	data, err := os.ReadFile(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestImagesOfEveryGenerationArePulled(t *testing.T) {
	root, kernel, initrd, squash := noise(1, 300<<10), noise(2, 50<<10), noise(3, 60<<10), noise(4, 70<<10)
	tests := []struct {
		name   string
		layers []layer
		check  map[role][]byte
	}{
		{
			name: "current media types",
			layers: []layer{
				{ironcore + "rootfs", root},
				{ironcore + "kernel", kernel},
				{ironcore + "initramfs", initrd},
				{ironcore + "squashfs", squash},
				{ironcore + "uki", noise(5, 100)},
				{ironcore + "iso", noise(6, 100)},
			},
			check: map[role][]byte{
				roleRootFS: root, roleKernel: kernel, roleInitramfs: initrd, roleSquashFS: squash,
				roleUKI: noise(5, 100), roleISO: noise(6, 100),
			},
		},
		{
			name: "legacy media types",
			layers: []layer{
				{ironcore + "rootfs.v1alpha1.rootfs", root},
				{ironcore + "vmlinuz.v1alpha1.vmlinuz", kernel},
				{ironcore + "initramfs.v1alpha1.initramfs", initrd},
				{ironcore + "squashfs.v1alpha1.squashfs", squash},
			},
			check: map[role][]byte{roleRootFS: root, roleKernel: kernel, roleInitramfs: initrd, roleSquashFS: squash},
		},
		{
			name: "media types of the predecessor",
			layers: []layer{
				{onmetal + "rootfs.v1alpha1.rootfs", root},
				{onmetal + "vmlinuz.v1alpha1.vmlinuz", kernel},
				{onmetal + "initramfs.v1alpha1.initramfs", initrd},
			},
			check: map[role][]byte{roleRootFS: root, roleKernel: kernel, roleInitramfs: initrd},
		},
		{
			name:   "the root disk's name in the specification",
			layers: []layer{{ironcore + "disk.img", root}},
			check:  map[role][]byte{roleRootFS: root},
		},
		{
			name:   "a squashfs is no root disk",
			layers: []layer{{ironcore + "squashfs", squash}},
			check:  map[role][]byte{roleSquashFS: squash},
		},
		{
			name:   "a current layer wins over a legacy one, whatever the order",
			layers: []layer{{ironcore + "rootfs", root}, {ironcore + "rootfs.v1alpha1.rootfs", squash}},
			check:  map[role][]byte{roleRootFS: root},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reg := plainRegistry(t)
			want := reg.push("os/linux", "v1", `{"commandLine":"console=ttyS0 quiet"}`, tt.layers...)
			h := start(t, reg, t.TempDir(), nil)
			ref := reg.host() + "/os/linux:v1"
			img := h.mustPull(ref)
			if img.Ref != ref || img.Digest != want.Digest || img.CommandLine != "console=ttyS0 quiet" {
				t.Errorf("image is %+v, want ref %s, digest %s and the command line", img, ref, want.Digest)
			}
			for r, slot := range img.slots() {
				if got := contents(t, *slot); !bytes.Equal(got, tt.check[role(r)]) {
					t.Errorf("%s has %d bytes, want %d equal ones", role(r), len(got), len(tt.check[role(r)]))
				}
			}
			byDigest, err := h.Get(context.Background(), reg.host()+"/os/linux@"+want.Digest.String())
			if err != nil || byDigest.Digest != want.Digest {
				t.Errorf("Get by digest = %v, %v", byDigest, err)
			}
			if err := h.Verify(context.Background(), img.Digest); err != nil {
				t.Errorf("Verify: %v", err)
			}
		})
	}
}

func TestFilesOfTheCacheAreNotWorldReadable(t *testing.T) {
	reg := plainRegistry(t)
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", noise(1, 5000)})
	h := start(t, reg, filepath.Join(t.TempDir(), "images"), nil)
	h.mustPull(reg.host() + "/os:v1")
	err := filepath.WalkDir(h.dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Stat(path)
		if err == nil && info.Mode().Perm()&0o007 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheManifestForThisPlatformIsSelected(t *testing.T) {
	reg := plainRegistry(t)
	amd := reg.push("os", "", "{}", layer{ironcore + "rootfs", noise(1, 1000)})
	arm := reg.push("os", "", "{}", layer{ironcore + "rootfs", noise(2, 1000)})
	metal := reg.push("os", "", "{}", layer{ironcore + "squashfs", noise(3, 1000)})
	metal.Annotations = map[string]string{"variant": "metal"}
	index := reg.pushIndex("os", "multi", onPlatform(metal, "linux", "amd64"), onPlatform(arm, "linux", "aarch64"),
		onPlatform(amd, "linux", "amd64"))
	reg.pushIndex("os", "arm", onPlatform(arm, "linux", "arm64"), onPlatform(amd, "windows", "amd64"))
	reg.push("os", "inside", `{"architecture":"s390x","os":"linux"}`, layer{ironcore + "rootfs", noise(1, 1000)})
	h := start(t, reg, t.TempDir(), nil)

	if img := h.mustPull(reg.host() + "/os:multi"); img.Digest != amd.Digest {
		t.Errorf("selected %s, want the amd64 virtualization manifest %s", img.Digest, amd.Digest)
	}
	if img, err := h.Get(context.Background(), reg.host()+"/os@"+index.Digest.String()); err != nil || img.Digest != amd.Digest {
		t.Errorf("Get by the digest of the index = %v, %v", img, err)
	}
	failed := h.mustFail(reg.host() + "/os:arm")
	if failed.Kind != Invalid || !failed.Permanent() ||
		!strings.Contains(failed.Error(), "no manifest for linux/amd64; it has: linux/arm64, windows/amd64") {
		t.Errorf("wrong platform: kind %v, %v", failed.Kind, failed)
	}
	if failed := h.mustFail(reg.host() + "/os:inside"); !strings.Contains(failed.Error(), "image is for linux/s390x") {
		t.Errorf("wrong platform in the config: %v", failed)
	}

	onArm := start(t, reg, t.TempDir(), func(o *Options) { o.Platform.Architecture = "arm64" })
	if img := onArm.mustPull(reg.host() + "/os:multi"); img.Digest != arm.Digest {
		t.Errorf("selected %s, want the arm64 manifest %s", img.Digest, arm.Digest)
	}
}

func TestAMovedTagIsNoticedAndAPinnedImageStays(t *testing.T) {
	reg := plainRegistry(t)
	ref := reg.host() + "/os:latest"
	first := reg.push("os", "latest", "{}", layer{ironcore + "rootfs", noise(1, 1000)})
	h := start(t, reg, t.TempDir(), nil)
	h.mustPull(reg.host() + "/os") // no tag means latest
	second := reg.push("os", "latest", "{}", layer{ironcore + "rootfs", noise(2, 1000)})
	reg.reset()

	h.clock.advance(tagFreshness - time.Second)
	if img, err := h.Get(context.Background(), ref); err != nil || img.Digest != first.Digest {
		t.Fatalf("within a minute Get = %v, %v; want the remembered image", img, err)
	}
	if n := len(reg.asked("/v2/")); n != 0 {
		t.Errorf("registry was asked %d times although the answer was fresh", n)
	}
	h.clock.advance(2 * time.Second)
	if img := h.mustPull(ref); img.Digest != second.Digest {
		t.Errorf("after a minute Get = %s, want the moved tag's %s", img.Digest, second.Digest)
	}
	if n := len(reg.asked("/manifests/")); n != 1 {
		t.Errorf("tag was resolved with %d requests, want 1", n)
	}
	img, err := h.GetPinned(context.Background(), ref, first.Digest)
	if err != nil || img.Digest != first.Digest || img.Ref != ref {
		t.Errorf("GetPinned = %+v, %v; want the first image", img, err)
	}
}

func TestAPinnedImageIsPulledByItsDigest(t *testing.T) {
	reg := plainRegistry(t)
	first := reg.push("os", "v1", "{}", layer{ironcore + "rootfs", noise(1, 1000)})
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", noise(2, 1000)})
	h := start(t, reg, t.TempDir(), nil)
	ref := reg.host() + "/os:v1"
	if _, err := h.GetPinned(context.Background(), ref, first.Digest); err == nil {
		t.Fatal("image was there before the pull")
	}
	if e := h.ended(); e.Kind != PullSucceeded || e.Ref != ref || e.Image.Digest != first.Digest {
		t.Errorf("event is %+v", e)
	}
	if n := len(reg.asked("/manifests/v1")); n != 0 {
		t.Errorf("tag was asked for %d times", n)
	}
}

func TestARestartWithoutRegistryStillFindsTheImages(t *testing.T) {
	reg := plainRegistry(t)
	want := reg.push("os", "v1", `{"commandLine":"a=b"}`, layer{ironcore + "rootfs", noise(1, 1000)})
	dir := t.TempDir()
	h := start(t, reg, dir, nil)
	ref := reg.host() + "/os:v1"
	before := h.mustPull(ref)
	h.Close()
	reg.srv.Close()

	h = start(t, reg, dir, nil)
	var pulling *PullingError
	if _, err := h.GetPinned(context.Background(), ref, want.Digest); !errors.As(err, &pulling) {
		t.Fatalf("GetPinned before the bytes are proven: %v", err)
	}
	if e := h.ended(); e.Kind != PullSucceeded {
		t.Fatalf("proving the bytes offline: %v", e.Err)
	}
	pinned, err := h.GetPinned(context.Background(), ref, want.Digest)
	if err != nil {
		t.Fatalf("GetPinned offline: %v", err)
	}
	if diff := cmp.Diff(before, pinned, cmp.AllowUnexported(Image{})); diff != "" {
		t.Errorf("image differs after the restart:\n%s", diff)
	}
	if img := h.mustPull(ref); img.Digest != want.Digest {
		t.Errorf("tag offline = %s, want the one last seen", img.Digest)
	}
	if f := h.mustFail(reg.host() + "/os:other"); f.Kind != Unavailable || f.Permanent() {
		t.Errorf("unknown tag offline: kind %v", f.Kind)
	}
}

func TestFiftyGetsMakeOnePull(t *testing.T) {
	reg := plainRegistry(t)
	m := reg.push("os", "latest", "{}", layer{ironcore + "rootfs", noise(1, 1<<20)}, layer{ironcore + "kernel", noise(2, 1000)})
	proceed := make(chan struct{})
	reg.set(func(http.ResponseWriter, *http.Request) bool { <-proceed; return false }, nil)
	h := start(t, reg, t.TempDir(), nil)
	refs := []string{reg.host() + "/os", reg.host() + "/os:latest"}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for _, ref := range refs {
				_, _ = h.Get(context.Background(), ref)
			}
		})
	}
	wg.Wait()
	close(proceed)
	told := map[string]bool{h.ended().Ref: true, h.ended().Ref: true}
	if !told[refs[0]] || !told[refs[1]] {
		t.Errorf("end of the pull was told to %v, want both spellings", told)
	}
	if img, err := h.Get(context.Background(), refs[0]); err != nil || img.Digest != m.Digest {
		t.Fatalf("Get = %v, %v", img, err)
	}
	if n := len(reg.asked("/manifests/")); n != 1 {
		t.Errorf("%d manifest requests, want 1", n)
	}
	perBlob := map[string]int{}
	for _, q := range reg.asked("/blobs/") {
		perBlob[q.path]++
	}
	for path, n := range perBlob {
		if n != 1 {
			t.Errorf("%s was requested %d times", path, n)
		}
	}
	if len(perBlob) != 3 {
		t.Errorf("%d blobs were requested, want 3", len(perBlob))
	}
}

func TestImagesPulledTogetherShareTheirBlobs(t *testing.T) {
	reg := plainRegistry(t)
	shared := noise(1, 1<<20)
	reg.push("os", "a", "{}", layer{ironcore + "rootfs", shared}, layer{ironcore + "kernel", noise(2, 100)})
	reg.push("os", "b", "{}", layer{ironcore + "rootfs", shared}, layer{ironcore + "kernel", noise(3, 100)})
	h := start(t, reg, t.TempDir(), nil)
	for _, tag := range []string{"a", "b"} {
		_, _ = h.Get(context.Background(), reg.host()+"/os:"+tag)
	}
	for range 2 {
		if e := h.ended(); e.Kind != PullSucceeded {
			t.Fatalf("pull failed: %v", e.Err)
		}
	}
	if n := len(reg.asked(digest.FromBytes(shared).String())); n != 1 {
		t.Errorf("shared blob was requested %d times, want once", n)
	}
	l, err := h.List(context.Background())
	if err != nil || len(l.Images) != 2 {
		t.Fatalf("List = %+v, %v; want 2 images", l, err)
	}
	got := map[string]bool{}
	for _, img := range l.Images {
		for _, tag := range img.Tags {
			got[tag] = true
		}
	}
	if !got[reg.host()+"/os:a"] || !got[reg.host()+"/os:b"] {
		t.Errorf("List has references %v", got)
	}
}

func TestAnIdleCacheHasNoGoroutine(t *testing.T) {
	reg := plainRegistry(t)
	for i := range 5 {
		reg.push("os", fmt.Sprint(i), "{}", layer{ironcore + "rootfs", noise(uint64(i), 200<<10)})
	}
	h := start(t, reg, t.TempDir(), nil)
	before := goleak.IgnoreCurrent()
	for i := range 5 {
		_, _ = h.Get(context.Background(), fmt.Sprintf("%s/os:%d", reg.host(), i))
	}
	for range 5 {
		h.ended()
	}
	goleak.VerifyNone(t, before)
}

func TestACloseCacheAnswersClosed(t *testing.T) {
	h := start(t, plainRegistry(t), t.TempDir(), nil)
	h.Close()
	if _, err := h.Get(context.Background(), "localhost/os:v1"); !errors.Is(err, ErrClosed) {
		t.Errorf("Get after Close = %v", err)
	}
}
