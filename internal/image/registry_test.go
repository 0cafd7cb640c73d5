// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// testRegistry is a real registry in this process with a handler in front that records requests and can misbehave.
type testRegistry struct {
	t     *testing.T
	inner http.Handler
	srv   *httptest.Server

	mu       sync.Mutex
	requests []request                                                 // guarded by mu
	fault    func(w http.ResponseWriter, r *http.Request) (done bool)  // guarded by mu
	mangle   func(r *http.Request, body []byte) (out []byte, cut bool) // guarded by mu
	sent     int64                                                     // guarded by mu; body bytes of blobs sent
}

type request struct{ method, path, rng string }

func newTestRegistry(t *testing.T, start func(http.Handler) *httptest.Server) *testRegistry {
	t.Helper()
	r := &testRegistry{t: t, inner: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	r.srv = start(r)
	t.Cleanup(r.srv.Close)
	return r
}

func (r *testRegistry) host() string {
	_, host, _ := strings.Cut(r.srv.URL, "://")
	return host
}

func (r *testRegistry) set(fault func(http.ResponseWriter, *http.Request) bool, mangle func(*http.Request, []byte) ([]byte, bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault, r.mangle = fault, mangle
}

func (r *testRegistry) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests, r.sent = nil, 0
}

// asked returns the GET and HEAD requests whose path contains part.
func (r *testRegistry) asked(part string) []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []request
	for _, q := range r.requests {
		if strings.Contains(q.path, part) {
			out = append(out, q)
		}
	}
	return out
}

func (r *testRegistry) bytesSent() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent
}

func (r *testRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	fault, mangle := r.fault, r.mangle
	r.requests = append(r.requests, request{req.Method, req.URL.Path, req.Header.Get("Range")})
	r.mu.Unlock()
	if fault != nil && fault(w, req) {
		return
	}
	rec := httptest.NewRecorder()
	r.inner.ServeHTTP(rec, req)
	body, cut := rec.Body.Bytes(), false
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	if mangle != nil {
		body, cut = mangle(req, body)
	}
	w.WriteHeader(rec.Code)
	n, _ := w.Write(body)
	if strings.Contains(req.URL.Path, "/blobs/") {
		r.mu.Lock()
		r.sent += int64(n)
		r.mu.Unlock()
	}
	if cut {
		panic(http.ErrAbortHandler)
	}
}

// send talks to the registry without the misbehaving handler.
func (r *testRegistry) send(method, path, contentType string, body []byte) {
	r.t.Helper()
	req := httptest.NewRequest(method, path, bytes.NewReader(body))
	req.Header.Set("Content-Type", contentType)
	rec := httptest.NewRecorder()
	r.inner.ServeHTTP(rec, req)
	if rec.Code/100 != 2 {
		r.t.Fatalf("%s %s: status %d: %s", method, path, rec.Code, rec.Body)
	}
}

func (r *testRegistry) blob(repo, mediaType string, data []byte) ocispec.Descriptor {
	r.t.Helper()
	d := digest.FromBytes(data)
	r.send(http.MethodPost, fmt.Sprintf("/v2/%s/blobs/uploads/?digest=%s", repo, d), "application/octet-stream", data)
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
}

func (r *testRegistry) manifest(repo, tag, mediaType string, doc any) ocispec.Descriptor {
	r.t.Helper()
	data, err := json.Marshal(doc)
	if err != nil {
		r.t.Fatal(err)
	}
	d := digest.FromBytes(data)
	r.send(http.MethodPut, fmt.Sprintf("/v2/%s/manifests/%s", repo, d), mediaType, data)
	if tag != "" {
		r.send(http.MethodPut, fmt.Sprintf("/v2/%s/manifests/%s", repo, tag), mediaType, data)
	}
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
}

// layer is a layer to be pushed.
type layer struct {
	mediaType string
	data      []byte
}

const (
	ironcore = "application/vnd.ironcore.image."
	onmetal  = "application/vnd.onmetal.image."
)

// push stores an image and returns its manifest.
func (r *testRegistry) push(repo, tag, config string, layers ...layer) ocispec.Descriptor {
	r.t.Helper()
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: r.blob(repo, ironcore+"config.v1+json", []byte(config)),
	}
	for _, l := range layers {
		m.Layers = append(m.Layers, r.blob(repo, l.mediaType, l.data))
	}
	return r.manifest(repo, tag, ocispec.MediaTypeImageManifest, m)
}

// pushIndex stores an index over manifests.
func (r *testRegistry) pushIndex(repo, tag string, manifests ...ocispec.Descriptor) ocispec.Descriptor {
	r.t.Helper()
	return r.manifest(repo, tag, ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: manifests,
	})
}

func onPlatform(d ocispec.Descriptor, os, arch string) ocispec.Descriptor {
	d.Platform = &ocispec.Platform{OS: os, Architecture: arch}
	return d
}
