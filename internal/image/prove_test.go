// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
	"time"
)

func matches(pattern, s string) bool { return regexp.MustCompile(pattern).MatchString(s) }

// asks asks for an image until it is handed out, and returns what was said before.
func (h *harness) asks(ref string, img *Image) (*Image, []error) {
	h.t.Helper()
	var said []error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		got, err := h.GetPinned(h.t.Context(), ref, img.Digest)
		if err == nil {
			return got, said
		}
		said = append(said, err)
	}
	h.t.Fatalf("image is not handed out: %v", said[len(said)-1])
	return nil, nil
}

func TestAHardLinkToABlobThatComesAndGoesIsNoReasonToReadItAgain(t *testing.T) {
	c := withImages(t, "a", nil)
	a := c.images["a"]
	link := filepath.Join(t.TempDir(), "base.raw")
	for _, change := range []func() error{
		func() error { return os.Link(a.RootFS.Path, link) },
		func() error { return os.Remove(link) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if _, said := c.asks(c.ref("a"), a); runtime.GOOS == "linux" && len(said) > 0 {
			t.Errorf("the image was not handed out at once: %v", said)
		}
	}
	if err := os.Link(a.RootFS.Path, link); err != nil {
		t.Fatal(err)
	}
	good := contents(t, a.RootFS)
	info, err := os.Stat(link)
	if err != nil {
		t.Fatal(err)
	}
	flipIn(t, link)
	if err := os.Chtimes(link, info.ModTime(), info.ModTime().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if img, said := c.asks(c.ref("a"), a); len(said) == 0 || !bytes.Equal(contents(t, img.RootFS), good) {
		t.Errorf("bytes that were written through the link were handed out after %v", said)
	}
}

func TestAByteThatFlipsWhileTheDaemonIsDownIsFoundBeforeUse(t *testing.T) {
	c := withImages(t, "a", nil)
	a := c.images["a"]
	good := contents(t, a.RootFS)
	c.Close()
	flipIn(t, a.RootFS.Path)
	h := start(t, c.reg, c.dir, nil)
	c.reg.reset()
	img, said := h.asks(c.ref("a"), a)
	if len(said) == 0 {
		t.Error("the image was handed out before it was verified")
	}
	if !bytes.Equal(contents(t, img.RootFS), good) {
		t.Error("the bad bytes were handed out")
	}
	if n := len(c.reg.asked(a.RootFS.Digest.String())); n != 1 {
		t.Errorf("the blob was pulled %d times, want once", n)
	}
}

func TestAByteThatFlipsWhileTheDaemonRunsIsFoundBeforeUse(t *testing.T) {
	c := withImages(t, "a", nil)
	a := c.images["a"]
	good := contents(t, a.RootFS)
	for range 2 {
		flipIn(t, a.RootFS.Path)
		img, said := c.asks(c.ref("a"), a)
		if len(said) == 0 || !bytes.Equal(contents(t, img.RootFS), good) {
			t.Errorf("the bad bytes were handed out after %v", said)
		}
	}
	for len(c.events) > 0 {
		<-c.events
	}
	flipIn(t, a.RootFS.Path)
	if img := c.mustPull(c.ref("a")); !bytes.Equal(contents(t, img.RootFS), good) { // by tag, too
		t.Error("the bad bytes were handed out under the tag")
	}
}

func TestABadBlobIsNotHandedOutWhileTheRegistryIsAway(t *testing.T) {
	c := withImages(t, "ab", nil)
	c.Close()
	flipIn(t, c.images["a"].RootFS.Path)
	h := start(t, c.reg, c.dir, nil)
	c.reg.set(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}, nil)
	if f := h.mustFail(c.ref("a")); f.Kind != Unavailable {
		t.Errorf("the bad image: %v", f)
	}
	if _, err := os.Stat(c.images["a"].RootFS.Path); !os.IsNotExist(err) {
		t.Errorf("the bad blob is still there: %v", err)
	}
	if img := h.mustPull(c.ref("b")); img.Digest != c.images["b"].Digest {
		t.Errorf("the good image: %+v", img)
	}
	c.reg.set(nil, nil)
	h.clock.advance(defaultRetryMax)
	h.mustPull(c.ref("a"))
}

func TestAGoodImageIsVerifiedOncePerDaemonWithoutTheRegistry(t *testing.T) {
	c := withImages(t, "a", nil)
	a := c.images["a"]
	c.Close()
	h := start(t, c.reg, c.dir, nil)
	c.reg.srv.Close()
	var verifying *PullingError
	if _, said := h.asks(c.ref("a"), a); len(said) == 0 || !errors.As(said[0], &verifying) || !verifying.Verifying {
		t.Errorf("before it was verified it was said: %v", said)
	}
	if e := <-h.events; e.Kind != PullStarted || !e.Verifying {
		t.Errorf("first event is %+v, want a start of verifying", e)
	}
	for range 3 {
		if _, said := h.asks(c.ref("a"), a); len(said) != 0 {
			t.Errorf("it is verified again: %v", said)
		}
	}
}

func TestVerifyingShowsItsProgress(t *testing.T) {
	err := error(&PullingError{Ref: "r", Done: 1, Total: 2, Verifying: true})
	if got, want := err.Error(), "image r is being verified: 1 of 2 bytes"; got != want {
		t.Errorf("error is %q, want %q", got, want)
	}
	var p *PullingError
	if !errors.As(err, &p) {
		t.Error("it is another error")
	}
}

func TestAManifestOrConfigThatRottedIsPulledAgain(t *testing.T) {
	for _, what := range []string{"manifest", "config"} {
		t.Run(what, func(t *testing.T) {
			c := withImages(t, "a", nil)
			a := c.images["a"]
			c.Close()
			d := a.Digest
			if what == "config" {
				d = a.config.Digest
			}
			flipIn(t, c.disk.blobPath(d))
			h := start(t, c.reg, c.dir, nil)
			if _, said := h.asks(c.ref("a"), a); len(said) == 0 {
				t.Error("the image was handed out before it was verified")
			}
		})
	}
}
