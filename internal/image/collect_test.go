// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const mib = 1 << 20

// world is who references what, and how full the disk is.
type world struct {
	mu    sync.Mutex
	uses  []Use  // guarded by mu
	fails error  // guarded by mu
	free  uint64 // guarded by mu
}

func (w *world) set(uses ...Use) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.uses = uses
}

func (w *world) setFails(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fails = err
}

func (w *world) references(context.Context) ([]Use, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.uses), w.fails
}

// cached is a cache with the images a, b, c, ... of a MiB each, used in that order, an hour after each other, and
// needed by nobody.
type cached struct {
	*harness
	*world
	images map[string]*Image
}

func withImages(t *testing.T, names string, mod func(*Options)) *cached {
	t.Helper()
	reg := plainRegistry(t)
	w := &world{free: 1 << 40}
	c := &cached{world: w, images: map[string]*Image{}}
	c.harness = start(t, reg, t.TempDir(), func(o *Options) {
		o.References = w.references
		o.FileSystem = func(string) (Space, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return Space{Free: w.free, Total: 1 << 40}, nil
		}
		if mod != nil {
			mod(o)
		}
	})
	for i, name := range strings.Split(names, "") {
		reg.push("os", name, "{}", layer{ironcore + "rootfs", noise(uint64(i+10), mib)})
		c.images[name] = c.mustPull(c.ref(name))
		c.clock.advance(touchInterval)
	}
	return c
}

func (c *cached) ref(name string) string { return c.reg.host() + "/os:" + name }

// there names the images that are in the cache.
func (c *cached) there() string {
	c.t.Helper()
	l, err := c.List(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	var names []string
	for _, e := range l.Images {
		for name, img := range c.images {
			if img.Digest == e.Digest {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return strings.Join(names, "")
}

func (c *cached) wants(there string) {
	c.t.Helper()
	if got := c.there(); got != there {
		c.t.Errorf("in the cache are %q, want %q", got, there)
	}
}

func TestTheLeastRecentlyUsedGoesWhenTheCacheIsOverItsBudget(t *testing.T) {
	c := withImages(t, "abcd", nil)
	if _, err := c.Get(t.Context(), c.reg.host()+"/os@"+c.images["a"].Digest.String()); err != nil { // a is the latest now
		t.Fatal(err)
	}
	c.clock.advance(time.Hour)
	c.set(Use{User: "m1", Ref: c.ref("b")})
	c.opts.Budget = Amount{Bytes: 5 * mib / 2}
	if err := c.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.wants("ab")
	if s := c.Stats(); s.Removals != 2 || s.RemovedBytes < 2*mib {
		t.Errorf("stats are %+v", s)
	}
	if p := partials(t, c.dir); len(p) != 0 {
		t.Errorf("left behind: %v", p)
	}
	if _, err := c.Get(t.Context(), c.ref("c")); err == nil {
		t.Error("a removed image is handed out")
	}
	if e := c.ended(); e.Kind != PullSucceeded {
		t.Fatal(e.Err)
	}
	c.wants("bc") // a made room for it
}

func TestReferencedImagesStayEvenOverBudgetAndOnAFullDisk(t *testing.T) {
	c := withImages(t, "abcd", nil)
	a, d := c.images["a"], c.images["d"]
	c.set(Use{User: "m1", Ref: c.ref("a"), Digest: a.Digest}, Use{User: "m2", Ref: c.ref("b")},
		Use{User: "m3", Ref: c.reg.host() + "/os@" + c.images["c"].Digest.String()},
		Use{User: "m4", Digest: d.RootFS.Digest}, // a disk that goes back to it
		Use{User: "m5", Ref: "not a reference"}, Use{User: "m6", Ref: c.ref("never-pulled")})
	c.opts.Budget, c.free = Amount{Bytes: 1}, 0
	for range 3 {
		if err := c.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Prune(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	c.wants("abcd")
	l, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	users := map[string]bool{}
	for _, e := range l.Images {
		for _, u := range e.UsedBy {
			users[u] = true
		}
	}
	if want := map[string]bool{"m1": true, "m2": true, "m3": true, "m4": true}; !cmp.Equal(users, want) {
		t.Errorf("users are %v", users)
	}
}

func TestDoubtRemovesNothing(t *testing.T) {
	for name, doubt := range map[string]func(c *cached){
		"the references cannot be asked for": func(c *cached) { c.fails = errors.New("store is gone") },
		"nobody tells the references":        func(c *cached) { c.opts.References = nil },
		"a manifest is damaged": func(c *cached) {
			flipIn(c.t, c.disk.blobPath(c.images["a"].Digest))
		},
		"a pinned digest is no digest": func(c *cached) { c.set(Use{User: "m", Digest: "sha256:12"}) },
		"what a tag means cannot be read": func(c *cached) {
			c.set(Use{User: "m", Ref: c.ref("a")})
			if err := os.WriteFile(c.disk.tagPath(c.ref("a")), []byte("{"), 0o640); err != nil {
				c.t.Fatal(err)
			}
		},
		"what a tag means is a directory": func(c *cached) {
			c.set(Use{User: "m", Ref: c.ref("x")})
			if err := os.Mkdir(c.disk.tagPath(c.ref("x")), 0o750); err != nil {
				c.t.Fatal(err)
			}
		},
		"a directory of the cache cannot be listed": func(c *cached) {
			dir := filepath.Join(c.dir, "blobs", "sha512")
			if err := errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o640)); err != nil {
				c.t.Fatal(err)
			}
		},
		"the file system does not answer": func(c *cached) {
			c.opts.FileSystem = func(string) (Space, error) { return Space{}, errors.New("stale handle") }
			c.fails = errors.New("store is gone") // for Prune, which needs no file system
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := withImages(t, "ab", nil)
			c.opts.Budget, c.free = Amount{Bytes: 1}, 0
			before := blobsIn(t, c.dir)
			doubt(c)
			if err := c.Sweep(t.Context()); err == nil {
				t.Error("Sweep has no doubts")
			}
			if strings.Contains(name, "damaged") {
				before = slices.DeleteFunc(before, func(n string) bool { return n == c.images["a"].Digest.Encoded() })
			} else if _, err := c.Prune(t.Context(), false); err == nil {
				t.Error("Prune has no doubts")
			}
			if d := cmp.Diff(before, blobsIn(t, c.dir)); d != "" {
				t.Errorf("blobs were removed:\n%s", d)
			}
		})
	}
}

func TestAReferenceThatComesInTheLastMomentSavesTheImage(t *testing.T) {
	c := withImages(t, "ab", nil)
	c.opts.Budget = Amount{Bytes: 1}
	asked := 0
	c.opts.References = func(context.Context) ([]Use, error) {
		if asked++; asked == 1 {
			return nil, nil
		}
		return []Use{{User: "new", Ref: c.ref("a")}}, nil
	}
	if err := c.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.wants("a")
}

func TestWhatWasHandedOutAMomentAgoStays(t *testing.T) {
	c := withImages(t, "ab", nil)
	if _, err := c.GetPinned(t.Context(), c.ref("a"), c.images["a"].Digest); err != nil {
		t.Fatal(err)
	}
	p, err := c.Prune(t.Context(), false)
	if err != nil || p.Busy != 1 || len(p.Removed) != 1 {
		t.Errorf("Prune = %+v, %v; want b removed and a busy", p, err)
	}
	c.wants("a")
	c.clock.advance(leaseTime)
	if _, err := c.Prune(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	c.wants("")
}

func TestAPullThatNeedsRoomHasTheOldestRemoved(t *testing.T) {
	c := withImages(t, "abc", nil)
	c.set(Use{User: "m", Ref: c.ref("a")})
	c.reg.push("os", "new", "{}", layer{ironcore + "rootfs", noise(99, mib)})
	c.opts.Budget = Amount{Bytes: 7 * mib / 2}
	c.images["n"] = c.mustPull(c.ref("new"))
	c.wants("acn")
}

func TestAPullForWhichThereIsNoRoomFailsAndRemovesNothingInVain(t *testing.T) {
	for name, c := range map[string]struct {
		limit func(*cached)
		want  string
	}{
		"the budget": {
			func(c *cached) { c.opts.Budget = Amount{Bytes: 7 * mib / 2} },
			`^the image needs 5 MiB, the image cache holds 2.\d* ?MiB of 3.5 MiB \(images.budget\): 3.\d* MiB are missing; removing the images`,
		},
		"the reserve": {
			func(c *cached) { c.opts.Reserve, c.free = Amount{Bytes: 1 << 30}, 1<<30+mib },
			`^the image needs 5 MiB, \S+ has 1 GiB free and 1 GiB of that stay in reserve \(images.reserve\): 4 MiB are missing; removing`,
		},
		"a doubt": {
			func(c *cached) { c.opts.Budget, c.fails = Amount{Bytes: 6 * mib}, errors.New("store is gone") },
			`nothing was removed: ask which images are referenced: store is gone$`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := withImages(t, "ab", nil)
			h.set(Use{User: "m", Ref: h.ref("a")})
			c.limit(h)
			h.reg.push("os", "big", "{}", layer{ironcore + "rootfs", noise(99, 5*mib)})
			f := h.mustFail(h.ref("big"))
			if f.Kind != Exhausted || !matches(c.want, f.Err.Error()) {
				t.Errorf("kind %v: %v", f.Kind, f.Err)
			}
			h.setFails(nil)
			h.wants("ab")
		})
	}
}

func TestImagesThatShareBlobsKeepThem(t *testing.T) {
	reg := plainRegistry(t)
	w := &world{}
	h := start(t, reg, t.TempDir(), func(o *Options) { o.References = w.references })
	root := noise(1, mib)
	reg.push("os", "a", `{"commandLine":"a"}`, layer{ironcore + "rootfs", root}, layer{ironcore + "kernel", noise(2, 9000)})
	m := reg.push("os", "", `{"commandLine":"b"}`, layer{ironcore + "rootfs", root}, layer{ironcore + "kernel", noise(3, 9000)})
	reg.pushIndex("os", "b", onPlatform(m, "linux", "amd64"))
	h.mustPull(reg.host() + "/os:a")
	b := h.mustPull(reg.host() + "/os:b")
	h.clock.advance(leaseTime)
	w.set(Use{User: "m", Ref: reg.host() + "/os:b"})
	plan, err := h.Prune(t.Context(), true)
	if err != nil || len(plan.Removed) != 1 || plan.Removed[0].Bytes > mib/2 {
		t.Fatalf("a dry run says %+v, %v; want a alone, without the shared disk", plan, err)
	}
	p, err := h.Prune(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(plan, p); d != "" {
		t.Errorf("the dry run said something else:\n%s", d)
	}
	if img, err := h.Get(t.Context(), reg.host()+"/os@"+m.Digest.String()); err != nil || img.Digest != b.Digest {
		t.Errorf("b is damaged: %v, %v", img, err)
	}
	w.set()
	h.clock.advance(leaseTime)
	if _, err := h.Prune(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if left := blobsIn(t, h.dir); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}
