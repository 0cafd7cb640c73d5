// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"net/http"
	"strings"

	"k8s.io/streaming/pkg/httpstream"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// execPath stands between base URL and token.
const execPath = "/exec/"

// ServeHTTP opens a console for an unused token. The path may have that of BaseURL in front or not, as a proxy in
// between may cut it off. Nothing but a request that can be served uses up the token, so that a client can fall back
// from one protocol to another.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, ok := s.tokenIn(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost:
	default:
		w.Header().Set("Allow", "GET, HEAD, POST")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	if !s.tokens.Known(token) {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	if r.ContentLength != 0 {
		http.Error(w, "the request must have no body", http.StatusRequestEntityTooLarge)
		return
	}
	open := s.negotiate(w, r)
	if open == nil {
		return
	}
	s.serve(w, r, token, open)
}

func (s *Server) tokenIn(path string) (string, bool) {
	if s.base != nil {
		if rest, ok := strings.CutPrefix(path, strings.TrimRight(s.base.Path, "/")); ok {
			path = rest
		}
	}
	token, ok := strings.CutPrefix(path, execPath)
	return token, ok && token != "" && !strings.Contains(token, "/")
}

// opener takes the connection over. It returns the version of the stream protocol.
type opener func() (t transport, version int, err error)

// negotiate agrees on a protocol, or answers why there is none and returns nil.
func (s *Server) negotiate(w http.ResponseWriter, r *http.Request) opener {
	switch {
	case r.Method == http.MethodHead:
	case isWebSocket(r):
		p, ok := negotiateWebSocket(w, r)
		if !ok {
			return nil
		}
		return func() (transport, int, error) {
			t, err := upgradeWebSocket(w, r, p, s.o.KeepAlive)
			if err != nil {
				return nil, 0, err
			}
			return t, p.version, nil
		}
	case isSPDY(r):
		protocol, err := httpstream.Handshake(r, w, spdyProtocols)
		if err != nil {
			return nil
		}
		return func() (transport, int, error) {
			t, err := upgradeSPDY(w, s.o.KeepAlive)
			if err != nil {
				return nil, 0, err
			}
			if err := t.gather(spdyVersions[protocol], s.o.gather); err != nil {
				t.cut()
				return nil, 0, err
			}
			return t, spdyVersions[protocol], nil
		}
	}
	http.Error(w, "a console is opened by an upgrade to SPDY/3.1 or WebSocket", http.StatusBadRequest)
	return nil
}

// serve uses the token up and holds the session.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, token string, open opener) {
	if !s.enter() {
		http.Error(w, "too many consoles are open, or the provider is stopping", http.StatusServiceUnavailable)
		return
	}
	defer s.leave()
	id, ok := s.tokens.Take(token)
	if !ok {
		http.NotFound(w, r)
		return
	}
	log := s.o.Logger.With("machine", id)
	t, version, err := open()
	if err != nil {
		log.Info("console not opened", "error", err)
		return
	}
	log.Info("console opened", "protocol", r.Header.Get("Upgrade"), "version", version)
	err = converse(r.Context(), s.o.Attacher, id, version, t)
	if err != nil && r.Context().Err() == nil && !machine.IsKind(err, machine.NotFound) {
		log.Warn("console ended", "error", err)
		return
	}
	log.Info("console ended")
}

// enter counts a session, unless there are too many.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	select {
	case s.room <- struct{}{}:
		s.sessions.Add(1)
		return true
	default:
		return false
	}
}

func (s *Server) leave() {
	<-s.room
	s.sessions.Done()
}
