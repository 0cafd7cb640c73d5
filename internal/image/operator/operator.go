// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package operator lets somebody on this host ask the running daemon about its image cache: what is in it, what could
// go, and whether its bytes are right. It exists because only the daemon knows which images are needed and which are
// being handed out; a second process at the same directory would remove what a machine is being made from.
//
// It speaks HTTP and JSON over a Unix socket, whose mode alone decides who may ask. It must never listen elsewhere, and
// never remove what the cache itself would not.
package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
)

const (
	pathList   = "/images"
	pathPrune  = "/images/prune"
	pathVerify = "/images/verify"

	// maxRequest bounds the body of a request in bytes.
	maxRequest    = 4 << 10
	headerTimeout = 10 * time.Second
)

// Cache is what can be asked of the image cache.
type Cache interface {
	List(ctx context.Context) (image.Listing, error)
	Prune(ctx context.Context, dryRun bool) (image.Pruned, error)
	Verify(ctx context.Context, d digest.Digest) error
}

var _ Cache = (*image.Cache)(nil)

type pruneRequest struct {
	DryRun bool `json:"dryRun"`
}

type verifyRequest struct {
	Digest digest.Digest `json:"digest"`
}

// failure is the answer to a request that failed.
type failure struct {
	Kind    string `json:"kind"` // of package image, in words
	Message string `json:"error"`
}

// Serve answers on l until ctx ends, and closes it. What a request began ends with its client or with ctx.
func Serve(ctx context.Context, l net.Listener, c Cache, log *slog.Logger) error {
	srv := &http.Server{
		Handler: handler(c), ReadHeaderTimeout: headerTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		_ = srv.Close()
	})
	err := srv.Serve(l)
	if !stop() {
		<-closed
	}
	if ctx.Err() == nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("answer questions about images: %w", err)
	}
	return nil
}

func handler(c Cache) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathList, func(w http.ResponseWriter, r *http.Request) {
		l, err := c.List(r.Context())
		answer(w, l, err)
	})
	mux.HandleFunc("POST "+pathPrune, func(w http.ResponseWriter, r *http.Request) {
		var req pruneRequest
		if !read(w, r, &req) {
			return
		}
		p, err := c.Prune(r.Context(), req.DryRun)
		answer(w, p, err)
	})
	mux.HandleFunc("POST "+pathVerify, func(w http.ResponseWriter, r *http.Request) {
		var req verifyRequest
		if !read(w, r, &req) {
			return
		}
		answer(w, struct{}{}, c.Verify(r.Context(), req.Digest))
	})
	return mux
}

// read decodes a request. What it does not know it refuses: a flag that is not understood could be the one that says
// that nothing is to be removed.
func read(w http.ResponseWriter, r *http.Request, into any) bool {
	d := json.NewDecoder(io.LimitReader(r.Body, maxRequest))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		write(w, http.StatusBadRequest, failure{Kind: image.Invalid.String(), Message: "request is not understood: " + err.Error()})
		return false
	}
	return true
}

func answer(w http.ResponseWriter, body any, err error) {
	if err == nil {
		write(w, http.StatusOK, body)
		return
	}
	kind := image.KindOf(err)
	status := http.StatusInternalServerError
	switch kind {
	case image.NotFound:
		status = http.StatusNotFound
	case image.Invalid:
		status = http.StatusBadRequest
	}
	write(w, status, failure{Kind: kind.String(), Message: err.Error()})
}

func write(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that went away needs no answer
}
