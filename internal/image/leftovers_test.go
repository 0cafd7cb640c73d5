// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// Whoever references an image and was handed it must find it whole for as long as the reference stands, however often
// others remove what they may.
func TestAnImageThatIsHandedOutIsNeverRemovedUnderItsUser(t *testing.T) {
	c := withImages(t, "abc", func(o *Options) {
		o.Budget = Amount{Bytes: 5 * mib / 2}
		o.RetryMax = time.Millisecond
	})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var refs sync.Map // by user
	c.opts.References = func(context.Context) (uses []Use, err error) {
		refs.Range(func(user, d any) bool {
			uses = append(uses, Use{User: user.(string), Digest: d.(digest.Digest)})
			return true
		})
		return uses, nil
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			c.clock.advance(leaseTime / 2)
			_ = c.Sweep(ctx)
			_, _ = c.Prune(ctx, false)
		}
	})
	var used [2]int
	for user := range used {
		wg.Go(func() {
			for turn := user; ctx.Err() == nil; turn++ {
				name := "abc"[turn%3 : turn%3+1]
				want, id := noise(uint64(turn%3+10), mib), c.images[name].Digest
				refs.Store(fmt.Sprint(user), id)
				img, err := c.GetPinned(ctx, c.ref(name), id)
				for ; err != nil && ctx.Err() == nil; img, err = c.GetPinned(ctx, c.ref(name), id) {
					time.Sleep(time.Millisecond)
				}
				for i := 0; i < 5 && err == nil; i++ {
					time.Sleep(time.Millisecond)
					if data, err := os.ReadFile(img.RootFS.Path); err != nil || !bytes.Equal(data, want) {
						t.Errorf("image %s: %v, %d bytes", name, err, len(data))
					}
					used[user]++
				}
				refs.Delete(fmt.Sprint(user))
			}
		})
	}
	wg.Wait()
	if used[0] == 0 || used[1] == 0 || c.Stats().Removals == 0 {
		t.Errorf("handed out %v times, %d removals; the test proves nothing", used, c.Stats().Removals)
	}
}

func TestAnImageThatIsAskedForAfterTheSurveyStays(t *testing.T) {
	c := withImages(t, "a", nil)
	inv, err := c.survey(t.Context())
	if err != nil || len(inv.units) != 1 || !inv.units[0].removable() {
		t.Fatalf("survey = %+v, %v", inv, err)
	}
	if _, err := c.GetPinned(t.Context(), c.ref("a"), c.images["a"].Digest); err != nil {
		t.Fatal(err)
	}
	if r, ok, err := c.remove(inv, inv.units[0]); ok || err != nil {
		t.Errorf("removed %+v, %v", r, err)
	}
	c.wants("a")
}

func TestABlobThatAPullCountsOnAfterTheSurveyStays(t *testing.T) {
	c := withImages(t, "a", nil)
	inv, err := c.survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	disk := c.images["a"].RootFS
	c.hold(&entry{}, disk.Digest) // by the pull of another image with the same disk
	r, ok, err := c.remove(inv, inv.units[0])
	if !ok || err != nil || r.Bytes >= mib {
		t.Errorf("remove = %+v, %v, %v", r, ok, err)
	}
	if _, err := os.Stat(disk.Path); err != nil {
		t.Error(err)
	}
	c.wants("")
}

func TestLeftoversOfKilledPullsGoOnceTheyAreOld(t *testing.T) {
	c := withImages(t, "ab", nil)
	orphan := digest.FromString("orphan")
	write := func(path string) {
		if err := os.WriteFile(path, []byte("x"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	write(c.disk.blobPath(orphan))
	write(c.disk.partialPath(orphan))
	write(filepath.Join(c.dir, "partial", "tmp-1"))
	if err := os.Remove(c.images["b"].RootFS.Path); err != nil { // its pull was killed before the disk came
		t.Fatal(err)
	}
	clear := func() {
		t.Helper()
		if err := c.ClearLeftovers(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	clear()
	if got := len(blobsIn(t, c.dir)); got != 5 || len(partials(t, c.dir)) != 2 { // a, b without disk, orphan; they share a config
		t.Errorf("%d blobs and %v are left of fresh leftovers", got, partials(t, c.dir))
	}
	c.clock.advance(staleAge + time.Hour)
	c.set(Use{User: "m", Digest: digest.FromString("an image that is not there")})
	pull := &entry{} // that takes up the old partial download right now
	c.hold(pull, orphan)
	clear()
	if got := partials(t, c.dir); len(got) != 1 || got[0] != orphan.String() {
		t.Errorf("left of the downloads is %v", got)
	}
	c.Cache.mu.Lock()
	c.releaseLocked(pull.held)
	c.Cache.mu.Unlock()
	c.clock.advance(leaseTime)
	clear()
	if _, err := os.Stat(c.disk.blobPath(orphan)); err != nil {
		t.Error("a blob that may be of an image that is referenced and incomplete was removed")
	}
	c.set()
	clear()
	if got := len(blobsIn(t, c.dir)); got != 3 || len(partials(t, c.dir)) != 0 {
		t.Errorf("%d blobs and %v are left, want a alone", got, partials(t, c.dir))
	}
	c.wants("a")
}

func TestADamagedManifestGoesAloneAndIsPulledAgain(t *testing.T) {
	c := withImages(t, "a", nil)
	a := c.images["a"]
	c.set(Use{User: "m", Ref: c.ref("a"), Digest: a.Digest})
	flipIn(t, c.disk.blobPath(a.Digest))
	c.clock.advance(staleAge * 2)
	if err := c.ClearLeftovers(t.Context()); err == nil || !strings.Contains(err.Error(), a.Digest.String()) {
		t.Errorf("error is %v, want the damaged manifest named", err)
	}
	if err := c.ClearLeftovers(t.Context()); err != nil { // the layers look like leftovers now
		t.Error(err)
	}
	c.Close()
	h := start(t, c.reg, c.dir, nil)
	c.reg.reset()
	if _, err := h.GetPinned(t.Context(), c.ref("a"), a.Digest); err == nil {
		t.Fatal("an image without a manifest is handed out")
	}
	if e := h.ended(); e.Kind != PullSucceeded || len(c.reg.asked("/blobs/")) != 0 {
		t.Errorf("the pull ended with %v and asked for %v; want the manifest alone", e, c.reg.asked("/blobs/"))
	}
}

func TestTheUseOfAnImageIsRememberedOverARestart(t *testing.T) {
	c := withImages(t, "ab", nil)
	c.set(Use{User: "m", Ref: c.ref("a")})
	c.clock.advance(48 * time.Hour)
	if err := c.ClearLeftovers(t.Context()); err != nil { // any look notes that a is referenced
		t.Fatal(err)
	}
	c.set()
	c.Close()
	h := start(t, c.reg, c.dir, func(o *Options) { o.References, o.Budget = c.references, Amount{Bytes: 3 * mib / 2} })
	if err := h.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := h.List(t.Context())
	if err != nil || len(l.Images) != 1 || l.Images[0].Digest != c.images["a"].Digest {
		t.Errorf("left is %+v, %v; want a, whose last machine went just now", l, err)
	}
}

func TestRunSweepsAfterAPullAndEndsWithItsContext(t *testing.T) {
	c := withImages(t, "abc", nil)
	c.opts.Budget = Amount{Bytes: 5 * mib / 2}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	waitFor(t, "the first look", func() bool { return c.there() == "bc" })
	c.reg.push("os", "d", "{}", layer{ironcore + "rootfs", noise(99, 4096)})
	c.mustPull(c.ref("d"))
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestACacheIsListedWithoutADaemon(t *testing.T) {
	c := withImages(t, "ab", nil)
	c.Close()
	l, err := ListDir(t.Context(), c.dir)
	if err != nil || len(l.Images) != 2 || l.Unknown == "" || l.Bytes < 2*mib {
		t.Errorf("list is %+v, %v", l, err)
	}
	if _, err := ListDir(t.Context(), filepath.Join(c.dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
}

func blobsIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// flipIn changes one byte of a file where it is, and sets the time of change back as far as one can.
func flipIn(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	at := info.Size() / 2
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x20
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
}
