// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fakeCache struct {
	listing image.Listing
	pruned  image.Pruned
	dryRuns []bool
	err     error
	block   chan struct{} // Verify says that it is there, and waits for its context
}

func (f *fakeCache) List(context.Context) (image.Listing, error) { return f.listing, f.err }

func (f *fakeCache) Prune(_ context.Context, dryRun bool) (image.Pruned, error) {
	f.dryRuns = append(f.dryRuns, dryRun)
	return f.pruned, f.err
}

func (f *fakeCache) Verify(ctx context.Context, d digest.Digest) error {
	if f.block != nil {
		f.block <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	if f.err == nil {
		return d.Validate()
	}
	return f.err
}

// serve answers for a cache and returns a client and what stops the daemon.
func serve(t *testing.T, c Cache) (*Client, context.CancelFunc) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "chp-images-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, c, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
		_ = os.RemoveAll(dir)
	})
	return NewClient(l.Addr().String()), cancel
}

func TestWhatTheCacheSaysArrives(t *testing.T) {
	d := digest.FromString("a")
	f := &fakeCache{
		listing: image.Listing{Images: []image.Entry{{
			Digest: d, Tags: []string{"r/a:b"}, Bytes: 7, UsedBy: []string{"m"}, LastUsed: time.Unix(5, 0).UTC(),
		}}, Bytes: 9, Budget: 10, Reserve: 11, Free: 12, Unknown: "x"},
		pruned: image.Pruned{Removed: []image.Removed{{Digest: d, Bytes: 7, LastUsed: time.Unix(5, 0).UTC()}}, InUse: 1, Busy: 2},
	}
	client, _ := serve(t, f)
	l, err := client.List(t.Context())
	if diff := cmp.Diff(f.listing, l); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, dryRun := range []bool{true, false} {
		p, err := client.Prune(t.Context(), dryRun)
		if diff := cmp.Diff(f.pruned, p); diff != "" || err != nil {
			t.Error(err, diff)
		}
	}
	if diff := cmp.Diff([]bool{true, false}, f.dryRuns); diff != "" {
		t.Error("dry runs:", diff)
	}
	if err := client.Verify(t.Context(), d); err != nil {
		t.Error(err)
	}
}

func TestFailuresArriveWithTheirKind(t *testing.T) {
	f := &fakeCache{err: &image.PullFailedError{Ref: "r", Kind: image.Corrupt, Err: errors.New("bad")}}
	client, _ := serve(t, f)
	var e *Error
	if err := client.Verify(t.Context(), "d"); !errors.As(err, &e) || e.Kind != "corrupt" || !strings.Contains(e.Error(), "bad") {
		t.Errorf("error is %v", err)
	}
	if _, err := client.List(t.Context()); !errors.As(err, &e) {
		t.Errorf("error is %v", err)
	}
	if _, err := client.Prune(t.Context(), false); !errors.As(err, &e) {
		t.Errorf("error is %v", err)
	}
}

func TestWithoutADaemonTheErrorSaysSo(t *testing.T) {
	if _, err := NewClient("/nowhere/s").List(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
}

func TestRequestsThatAreNotUnderstoodDoNothing(t *testing.T) {
	for _, c := range []struct{ method, path, body string }{
		{"POST", pathPrune, ""},
		{"POST", pathPrune, "{"},
		{"POST", pathPrune, `{"dry":true}`},
		{"POST", pathPrune, `{"dryRun":"yes"}`},
		{"GET", pathPrune, ""},
		{"POST", pathVerify, strings.Repeat(" ", maxRequest) + "{}"},
		{"DELETE", pathList, ""},
	} {
		f := &fakeCache{}
		w := httptest.NewRecorder()
		handler(f).ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		if w.Code < 400 || w.Code >= 500 || len(f.dryRuns) > 0 {
			t.Errorf("%v: status %d, pruned %v", c, w.Code, f.dryRuns)
		}
	}
}

func TestAnAnswerThatIsNoneIsAnError(t *testing.T) {
	for _, answer := range []string{"", "{", "[]", "<html>"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }))
		c := NewClient("")
		c.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", srv.Listener.Addr().String())
		}
		if _, err := c.List(t.Context()); err == nil {
			t.Errorf("%q is taken for an answer", answer)
		}
		srv.Close()
	}
}

func TestVerifyingEndsWithItsClientAndWithTheDaemon(t *testing.T) {
	for _, who := range []string{"client", "daemon"} {
		f := &fakeCache{block: make(chan struct{})}
		client, stop := serve(t, f)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- client.Verify(ctx, "d") }()
		<-f.block
		if who == "client" {
			cancel()
		} else {
			stop()
		}
		if err := <-ended; err == nil {
			t.Errorf("%s: no error", who)
		}
		cancel()
	}
}
