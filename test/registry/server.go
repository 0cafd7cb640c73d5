// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
)

const (
	// DefaultAddress lets the kernel choose a free port.
	DefaultAddress = "127.0.0.1:0"

	headerTimeout   = 30 * time.Second
	shutdownTimeout = 5 * time.Second
)

// Options configures Start.
type Options struct {
	// Dir keeps blobs and manifests. Default: a temporary directory that Close removes.
	Dir string
	// Address is a loopback address with port; default DefaultAddress.
	Address string
	// Username and Password are demanded by basic authentication; nothing is when both are empty.
	Username, Password string
	// Logger gets one line a request at level debug; default: silent.
	Logger *slog.Logger
}

// Server is a running registry. Its methods may be called from several goroutines.
type Server struct {
	dir       string
	temporary bool
	user      string
	password  string
	log       *slog.Logger
	listener  net.Listener
	http      *http.Server
	inner     http.Handler
	manifests *manifestStore
	stopWatch func() bool
	done      chan struct{}

	mu       sync.Mutex
	requests []Request
	faults   []*armedFault
}

// Start listens and serves until Close, or until ctx ends.
func Start(ctx context.Context, o Options) (*Server, error) {
	s, err := newServer(o)
	if err != nil {
		return nil, fmt.Errorf("start registry: %w", err)
	}
	if err := s.listen(o.Address); err != nil {
		s.removeTemporary()
		return nil, fmt.Errorf("start registry: %w", err)
	}
	s.http = &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, ErrorLog: log.New(io.Discard, "", 0),
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("registry stopped", "error", err)
		}
	}()
	s.stopWatch = context.AfterFunc(ctx, func() { _ = s.http.Close() })
	return s, nil
}

func newServer(o Options) (*Server, error) {
	s := &Server{dir: o.Dir, user: o.Username, password: o.Password, log: o.Logger, done: make(chan struct{})}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.dir == "" {
		dir, err := os.MkdirTemp("", "registry-")
		if err != nil {
			return nil, err
		}
		s.dir, s.temporary = dir, true
	}
	blobs := filepath.Join(s.dir, "blobs")
	if err := os.MkdirAll(blobs, 0o750); err != nil {
		s.removeTemporary()
		return nil, err
	}
	s.inner = ggcr.New(
		ggcr.Logger(log.New(io.Discard, "", 0)),
		ggcr.WithBlobHandler(ggcr.NewDiskBlobHandler(blobs)),
	)
	s.manifests = &manifestStore{dir: filepath.Join(s.dir, "manifests")}
	if err := s.manifests.replay(s.inner); err != nil {
		s.removeTemporary()
		return nil, err
	}
	return s, nil
}

func (s *Server) listen(address string) error {
	if address == "" {
		address = DefaultAddress
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("%s is not a loopback address", address)
	}
	s.listener, err = net.Listen("tcp", address)
	return err
}

// Host is HOST:PORT, as it stands at the front of an image reference.
func (s *Server) Host() string { return s.listener.Addr().String() }

// Close stops the server, lets running requests end for a short time, and removes a temporary directory.
func (s *Server) Close() error {
	s.stopWatch()
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	s.ClearFaults()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	<-s.done
	s.removeTemporary()
	return err
}

func (s *Server) removeTemporary() {
	if s.temporary {
		_ = os.RemoveAll(s.dir)
	}
}

// ServeHTTP records the request, applies what faults say, and serves it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault := s.record(r)
	s.log.Debug("request", "method", r.Method, "path", r.URL.Path, "range", r.Header.Get("Range"))
	if !s.authorized(r) {
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
		return
	}
	if fault != nil {
		var handled bool
		if w, handled = fault.apply(w, r); handled {
			return
		}
	}
	switch kind, name := classify(r.URL.Path); {
	case kind == KindBlob && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		s.serveBlob(w, r, name)
	case kind == KindManifest && (r.Method == http.MethodPut || r.Method == http.MethodDelete):
		s.manifests.change(s.inner, w, r)
	default:
		s.inner.ServeHTTP(w, r)
	}
}

func (s *Server) authorized(r *http.Request) bool {
	if s.user == "" && s.password == "" {
		return true
	}
	user, password, ok := r.BasicAuth()
	return ok && subtle.ConstantTimeCompare([]byte(user), []byte(s.user)) == 1 &&
		subtle.ConstantTimeCompare([]byte(password), []byte(s.password)) == 1
}

// serveBlob answers with ranges as RFC 9110 has them; the handler below refuses open-ended ones and offers none.
func (s *Server) serveBlob(w http.ResponseWriter, r *http.Request, digest string) {
	algorithm, hex, _ := strings.Cut(digest, ":")
	if algorithm != "sha256" || strings.Trim(hex, "0123456789abcdef") != "" || len(hex) != 64 {
		http.Error(w, `{"errors":[{"code":"DIGEST_INVALID"}]}`, http.StatusBadRequest)
		return
	}
	f, err := os.Open(filepath.Join(s.dir, "blobs", algorithm, hex))
	if err != nil {
		http.Error(w, `{"errors":[{"code":"BLOB_UNKNOWN"}]}`, http.StatusNotFound)
		return
	}
	defer f.Close()
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, f)
}
