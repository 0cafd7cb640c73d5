// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"pgregory.net/rapid"
)

// onceFor makes a mangler that changes the first n answers whose path contains part.
func onceFor(part string, n int, change func([]byte) ([]byte, bool)) func(*http.Request, []byte) ([]byte, bool) {
	var mu sync.Mutex
	return func(r *http.Request, body []byte) ([]byte, bool) {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 || !strings.Contains(r.URL.Path, part) {
			return body, false
		}
		n--
		return change(body)
	}
}

func flip(body []byte) ([]byte, bool) {
	out := bytes.Clone(body)
	out[len(out)/2] ^= 1
	return out, false
}

func cutAt(n int) func([]byte) ([]byte, bool) {
	return func(body []byte) ([]byte, bool) { return body[:min(n, len(body))], true }
}

func partials(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "partial"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestAFlippedByteIsNeverUsed(t *testing.T) {
	for _, what := range []string{"/manifests/", "/blobs/"} {
		t.Run(what, func(t *testing.T) {
			reg := plainRegistry(t)
			data := noise(1, 700<<10)
			reg.push("os", "v1", "{}", layer{ironcore + "rootfs", data})
			part := what
			if what == "/blobs/" {
				part = digest.FromBytes(data).String()
			}
			reg.set(nil, onceFor(part, 1, flip))
			h := start(t, reg, t.TempDir(), nil)
			ref := reg.host() + "/os:v1"
			if f := h.mustFail(ref); f.Kind != Corrupt || f.Permanent() {
				t.Errorf("kind %v: %v", f.Kind, f)
			}
			if p := partials(t, h.dir); len(p) != 0 {
				t.Errorf("corrupt bytes were kept: %v", p)
			}
			if _, err := os.Stat(h.disk.blobPath(digest.FromBytes(data))); err == nil {
				t.Error("corrupt blob got its final name")
			}
			h.clock.advance(defaultRetryMax)
			if img := h.mustPull(ref); !bytes.Equal(contents(t, img.RootFS), data) {
				t.Error("second pull brought other bytes")
			}
		})
	}
}

func TestABrokenConnectionIsResumedWhereItBroke(t *testing.T) {
	const size, cut = 3 << 20, 1<<20 + 12345
	reg := plainRegistry(t)
	data := noise(1, size)
	d := digest.FromBytes(data).String()
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", data})
	reg.set(nil, onceFor(d, 1, cutAt(cut)))
	h := start(t, reg, t.TempDir(), nil)
	img := h.mustPull(reg.host() + "/os:v1")
	if !bytes.Equal(contents(t, img.RootFS), data) {
		t.Error("resumed blob differs")
	}
	asked := reg.asked(d)
	if len(asked) != 2 || asked[0].rng != "" {
		t.Fatalf("requests %+v, want a plain one and one with a range", asked)
	}
	var from, to int64
	if _, err := fmt.Sscanf(asked[1].rng, "bytes=%d-%d", &from, &to); err != nil || from == 0 || from > cut || to != size-1 {
		t.Errorf("second request has range %q, want from at most %d to %d", asked[1].rng, cut, size-1)
	}
	if sent := reg.bytesSent(); sent > size+chunkSize {
		t.Errorf("%d bytes were sent for a blob of %d", sent, size)
	}
}

func TestARegistryWithoutRangesIsReadFromTheStart(t *testing.T) {
	reg := plainRegistry(t)
	data := noise(1, 1<<20)
	d := digest.FromBytes(data).String()
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", data})
	dir := t.TempDir()
	h := start(t, reg, dir, nil)
	if err := os.WriteFile(h.disk.partialPath(digest.Digest(d)), data[:500000], 0o640); err != nil {
		t.Fatal(err)
	}
	reg.set(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Range") == "" {
			return false
		}
		r.Header.Del("Range")
		reg.inner.ServeHTTP(w, r)
		return true
	}, nil)
	if img := h.mustPull(reg.host() + "/os:v1"); !bytes.Equal(contents(t, img.RootFS), data) {
		t.Error("blob differs")
	}
}

func TestAPartialFileThatLiesIsFoundOut(t *testing.T) {
	data := noise(1, 1<<20)
	d := digest.FromBytes(data)
	for name, left := range map[string][]byte{
		"too long":                 append(bytes.Clone(data), 1),
		"of the right length":      bytes.Repeat([]byte{7}, len(data)),
		"with zeros after a crash": make([]byte, 400000),
	} {
		t.Run(name, func(t *testing.T) {
			reg := plainRegistry(t)
			reg.push("os", "v1", "{}", layer{ironcore + "rootfs", data})
			h := start(t, reg, t.TempDir(), nil)
			if err := os.WriteFile(h.disk.partialPath(d), left, 0o640); err != nil {
				t.Fatal(err)
			}
			ref := reg.host() + "/os:v1"
			if name != "too long" {
				if f := h.mustFail(ref); f.Kind != Corrupt {
					t.Errorf("kind %v: %v", f.Kind, f)
				}
				h.clock.advance(defaultRetryMax)
			}
			if img := h.mustPull(ref); !bytes.Equal(contents(t, img.RootFS), data) {
				t.Error("blob differs")
			}
		})
	}
}

func TestACompletePartialNeedsNoRequest(t *testing.T) {
	reg := plainRegistry(t)
	data := noise(1, 1<<20)
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", data})
	h := start(t, reg, t.TempDir(), nil)
	if err := os.WriteFile(h.disk.partialPath(digest.FromBytes(data)), data, 0o640); err != nil {
		t.Fatal(err)
	}
	h.mustPull(reg.host() + "/os:v1")
	if n := len(reg.asked(digest.FromBytes(data).String())); n != 0 {
		t.Errorf("blob was asked for %d times", n)
	}
}

func TestAStopInTheMiddleIsResumedByTheNextDaemon(t *testing.T) {
	const size, half = 4 << 20, 2 << 20
	reg := plainRegistry(t)
	data := noise(1, size)
	d := digest.FromBytes(data)
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", data})
	halfSent := make(chan struct{})
	reg.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, d.String()) {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(size))
		_, _ = w.Write(data[:half])
		w.(http.Flusher).Flush()
		close(halfSent)
		<-r.Context().Done()
		return true
	}, nil)
	dir := t.TempDir()
	h := start(t, reg, dir, nil)
	ref := reg.host() + "/os:v1"
	_, _ = h.Get(context.Background(), ref)
	<-halfSent
	waitFor(t, "the half to arrive", func() bool {
		var p *PullingError
		_, err := h.Get(context.Background(), ref)
		return errors.As(err, &p) && p.Done >= half && p.Total > size
	})
	h.Close()
	for len(h.events) > 0 {
		if e := <-h.events; e.Kind == PullFailed || e.Kind == PullSucceeded {
			t.Errorf("a stopped pull sent %v", e.Kind)
		}
	}

	reg.set(nil, nil)
	reg.reset()
	h = start(t, reg, dir, nil)
	if img := h.mustPull(ref); !bytes.Equal(contents(t, img.RootFS), data) {
		t.Error("blob differs")
	}
	asked := reg.asked(d.String())
	if want := fmt.Sprintf("bytes=%d-%d", half, size-1); len(asked) != 1 || asked[0].rng != want {
		t.Errorf("requests %+v, want one with range %s", asked, want)
	}
}

func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestADownloadThatStallsIsGivenUpAndResumed(t *testing.T) {
	reg := plainRegistry(t)
	data := noise(1, 1<<20)
	d := digest.FromBytes(data).String()
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", data})
	var once sync.Once
	reg.set(func(w http.ResponseWriter, r *http.Request) (done bool) {
		if !strings.Contains(r.URL.Path, d) {
			return false
		}
		once.Do(func() {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			_, _ = w.Write(data[:chunkSize*2])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			done = true
		})
		return done
	}, nil)
	h := start(t, reg, t.TempDir(), nil)
	h.client.stall = 300 * time.Millisecond
	if img := h.mustPull(reg.host() + "/os:v1"); !bytes.Equal(contents(t, img.RootFS), data) {
		t.Error("blob differs")
	}
}

func TestFailuresAreRetriedAtGrowingCappedIntervals(t *testing.T) {
	reg := plainRegistry(t)
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", noise(1, 100)})
	reg.set(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}, nil)
	h := start(t, reg, t.TempDir(), func(o *Options) { o.RetryMax = 8 * time.Second })
	ref := reg.host() + "/os:v1"
	for i, want := range []time.Duration{1, 2, 4, 8, 8, 8} {
		want *= time.Second
		f := h.mustFail(ref)
		wait := f.RetryAt.Sub(h.clock.Now())
		if f.Kind != Unavailable || wait < want*4/5 || wait > want {
			t.Errorf("failure %d: kind %v, retry in %v; want between %v and %v", i, f.Kind, wait, want*4/5, want)
		}
		h.clock.advance(wait - time.Millisecond)
		requests := len(reg.asked("/v2/"))
		var again *PullFailedError
		if _, err := h.Get(context.Background(), ref); !errors.As(err, &again) || !again.RetryAt.Equal(f.RetryAt) {
			t.Fatalf("before RetryAt Get = %v, want the failure", err)
		}
		if len(reg.asked("/v2/")) != requests {
			t.Error("registry was asked before RetryAt")
		}
		h.clock.advance(time.Millisecond)
	}
	reg.set(nil, nil)
	h.mustPull(ref)
	reg.set(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusNotFound); return true }, nil)
	h.clock.advance(tagFreshness)
	f := h.mustFail(ref)
	if wait := f.RetryAt.Sub(h.clock.Now()); f.Kind != NotFound || !f.Permanent() || wait < 6*time.Second {
		t.Errorf("not found: kind %v, retry in %v", f.Kind, wait)
	}
}

func TestAServerErrorFallsBackToTheTagLastSeen(t *testing.T) {
	reg := plainRegistry(t)
	want := reg.push("os", "v1", "{}", layer{ironcore + "rootfs", noise(1, 100)})
	h := start(t, reg, t.TempDir(), nil)
	ref := reg.host() + "/os:v1"
	h.mustPull(ref)
	reg.set(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true }, nil)
	h.clock.advance(2 * tagFreshness)
	if img := h.mustPull(ref); img.Digest != want.Digest {
		t.Errorf("got %s", img.Digest)
	}
}

func TestAFullDiskIsNoticedBeforeAndDuringTheDownload(t *testing.T) {
	reg := plainRegistry(t)
	data := noise(1, 1<<20)
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", data})
	free := uint64(minReserve + 1<<20)
	h := start(t, reg, t.TempDir(), func(o *Options) {
		o.FileSystem = func(string) (Space, error) { return Space{Free: free, Total: 1 << 40}, nil }
	})
	ref := reg.host() + "/os:v1"
	f := h.mustFail(ref)
	if f.Kind != Exhausted || f.Permanent() {
		t.Errorf("kind %v, %v", f.Kind, f)
	}
	if n := len(reg.asked("/blobs/")); n != 0 {
		t.Errorf("%d blobs were asked for although they could not be stored", n)
	}
	free += 1 << 20
	h.clock.advance(defaultRetryMax)
	h.mustPull(ref)

	if k := KindOf(fmt.Errorf("write: %w", &os.PathError{Err: syscall.ENOSPC})); k != Exhausted {
		t.Errorf("ENOSPC is of kind %v", k)
	}
	left := filepath.Join(h.dir, "partial", "left")
	file, err := os.Create(left)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	_ = (&download{f: file}).giveUp(syscall.ENOSPC)
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Error("a partial download keeps a full disk full")
	}
}

func TestAbsentAndDamagedBlobsAreNotServed(t *testing.T) {
	reg := plainRegistry(t)
	data := noise(1, 100<<10)
	m := reg.push("os", "v1", "{}", layer{ironcore + "rootfs", data})
	h := start(t, reg, t.TempDir(), nil)
	ref := reg.host() + "/os:v1"
	img := h.mustPull(ref)

	if err := os.Truncate(img.RootFS.Path, 1000); err != nil {
		t.Fatal(err)
	}
	if img = h.mustPull(ref); !bytes.Equal(contents(t, img.RootFS), data) {
		t.Error("shortened blob was not repaired")
	}
	bad, _ := flip(data)
	if err := os.WriteFile(img.RootFS.Path, bad, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := h.Verify(context.Background(), m.Digest); KindOf(err) != Corrupt || !strings.Contains(err.Error(), img.RootFS.Digest.String()) {
		t.Errorf("Verify = %v, want Corrupt naming the blob", err)
	}
	if img = h.mustPull(ref); !bytes.Equal(contents(t, img.RootFS), data) {
		t.Error("corrupt blob was not repaired")
	}
	if err := h.Verify(context.Background(), digest.FromString("other")); KindOf(err) != NotFound {
		t.Errorf("Verify of an image not there = %v", err)
	}
}

func TestOnlyStalePartialsAreRemovedAtStart(t *testing.T) {
	dir := t.TempDir()
	if _, err := openDisk(dir); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-staleAge - time.Hour)
	for name, age := range map[string]time.Time{
		"tmp-old": old, "tmp-new": time.Now(), digest.FromString("old").String(): old,
		digest.FromString("new").String(): time.Now(), "foreign": old,
	} {
		path := filepath.Join(dir, "partial", name)
		if err := os.WriteFile(path, nil, 0o640); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, age, age); err != nil {
			t.Fatal(err)
		}
	}
	start(t, plainRegistry(t), dir, nil)
	got := strings.Join(partials(t, dir), " ")
	if want := "foreign " + digest.FromString("new").String() + " tmp-new"; got != want {
		t.Errorf("left are %s, want %s", got, want)
	}
}

func TestEventsTellOfAPullFromStartToEnd(t *testing.T) {
	reg := plainRegistry(t)
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", noise(1, 2<<20)})
	clock := &steppingClock{now: time.Now()}
	h := start(t, reg, t.TempDir(), func(o *Options) { o.Clock = clock })
	_, _ = h.Get(context.Background(), reg.host()+"/os:v1")
	waitFor(t, "the end of the pull", func() bool {
		_, err := h.Get(context.Background(), reg.host()+"/os:v1")
		return err == nil
	})
	h.Close()
	close(h.events)
	var kinds []string
	done := int64(-1)
	for e := range h.events {
		if len(kinds) == 0 || kinds[len(kinds)-1] != e.Kind.String() {
			kinds = append(kinds, e.Kind.String())
		}
		if e.Kind == PullProgress && (e.Done < done || e.Total < 2<<20) {
			t.Errorf("progress went from %d to %d of %d", done, e.Done, e.Total)
		}
		done = e.Done
	}
	if got := strings.Join(kinds, " "); got != "PullStarted PullProgress PullSucceeded" {
		t.Errorf("events %s", got)
	}
}

// steppingClock goes on by 200 ms with each look, so that a fast download seems slow.
type steppingClock struct {
	mu  sync.Mutex
	now time.Time // guarded by mu
}

func (c *steppingClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(200 * time.Millisecond)
	return c.now
}

func TestZerosAreStoredAsHolesWithoutChangingTheBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "partial")
	rapid.Check(t, func(rt *rapid.T) {
		var want []byte
		for range rapid.IntRange(1, 8).Draw(rt, "pieces") {
			n := rapid.IntRange(1, 3*holeSize).Draw(rt, "length")
			want = append(want, bytes.Repeat([]byte{rapid.SampledFrom([]byte{0, 0, 1}).Draw(rt, "byte")}, n)...)
		}
		f, err := os.Create(path)
		if err != nil {
			rt.Fatal(err)
		}
		defer f.Close()
		d := &download{f: f, progress: func(int64) {}}
		d.desc.Digest, d.desc.Size = digest.FromBytes(want), int64(len(want))
		d.hash = d.desc.Digest.Algorithm().Hash()
		for rest := want; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "chunk")
			if err := d.write(rest[:n]); err != nil {
				rt.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := d.finish(path); err != nil {
			rt.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			rt.Fatalf("file differs (%d bytes, want %d): %v", len(got), len(want), err)
		}
	})
}

func TestAnEmptyDiskImageTakesNoSpace(t *testing.T) {
	const size = 64 << 20
	reg := plainRegistry(t)
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", make([]byte, size)})
	h := start(t, reg, t.TempDir(), nil)
	img := h.mustPull(reg.host() + "/os:v1")
	info, err := os.Stat(img.RootFS.Path)
	if err != nil || info.Size() != size {
		t.Fatalf("stat: %v, %v", info, err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Blocks*512 > size/8 {
		t.Errorf("64 MiB of zeros take %d bytes on disk", st.Blocks*512)
	}
}
