// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// Defaults and limits.
const (
	DefaultAddress = "127.0.0.1:20251" // libvirt-provider's
	// DefaultKeepAlive is how often a client is pinged. One that is silent for three such intervals is gone.
	DefaultKeepAlive = 30 * time.Second
	// MaxSessions is how many clients may be attached at once. Further ones get 503 and keep their token.
	MaxSessions = 256
)

const (
	spareConns  = 256             // connections beyond the sessions, for requests; further ones are hung up on
	headerTime  = 5 * time.Second // for a client to send its request
	answerTime  = 10 * time.Second
	headerBytes = 16 << 10
	listenPause = 5 * time.Second // between tries to listen
)

// Attacher is what the server needs of the console hub.
type Attacher interface {
	Attach(ctx context.Context, machineID string, o console.AttachOptions, rw io.ReadWriteCloser) error
}

var _ Attacher = (*console.Hub)(nil)

// Options are what a Server is made with.
type Options struct {
	Attacher Attacher
	// Address to listen on, host and port; empty means DefaultAddress. An address beyond loopback must be named.
	Address string
	// BaseURL is what clients reach the server under, with or without a path; empty means Address, with a loopback
	// address for one that stands for all.
	BaseURL string
	// TLSCertFile and TLSKeyFile are PEM files; both empty means plain HTTP. Files that change are read again.
	TLSCertFile, TLSKeyFile string
	KeepAlive               time.Duration    // 0 means DefaultKeepAlive
	Now                     func() time.Time // for tokens; nil means time.Now
	Logger                  *slog.Logger

	gather time.Duration // 0 means gatherTime
}

// Server hands out URLs and serves them. Its methods may be called from several goroutines.
type Server struct {
	o      Options
	tokens *Tokens
	base   *url.URL // nil until known
	cert   *certificate
	room   chan struct{}

	mu       sync.Mutex
	url      string // under which tokens are used; empty while nothing listens
	problem  error  // why nothing listens
	closing  bool
	sessions sync.WaitGroup
}

// New makes a server that does not listen yet. Errors are machine.Invalid, or of reading the certificate.
func New(o Options) (*Server, error) {
	if o.Attacher == nil {
		return nil, errors.New("exec: Attacher is needed")
	}
	if o.Address == "" {
		o.Address = DefaultAddress
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = DefaultKeepAlive
	}
	if o.gather == 0 {
		o.gather = gatherTime
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	host, _, err := net.SplitHostPort(o.Address)
	switch {
	case err != nil || host == "":
		return nil, machine.InvalidField("address", "%q is not of the form host:port", o.Address)
	case o.KeepAlive < 0:
		return nil, machine.InvalidField("keepAlive", "must not be negative")
	case (o.TLSCertFile == "") != (o.TLSKeyFile == ""):
		return nil, machine.InvalidField("tlsCertFile", "certificate and key belong together")
	}
	s := &Server{
		o: o, tokens: NewTokens(o.Now), room: make(chan struct{}, MaxSessions),
		problem: machine.Errorf(machine.Unavailable, "the console server is not up yet"),
	}
	if o.BaseURL != "" {
		s.base, err = url.Parse(o.BaseURL)
		if err != nil || s.base.Host == "" || s.base.Scheme != "http" && s.base.Scheme != "https" ||
			s.base.RawQuery != "" || s.base.Fragment != "" || s.base.User != nil {
			return nil, machine.InvalidField("baseURL", "%q is not of the form http://host:port/path", o.BaseURL)
		}
	}
	if o.TLSCertFile != "" {
		if s.cert, err = newCertificate(o.TLSCertFile, o.TLSKeyFile, o.Logger); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// URL returns a new URL under which a machine's console can be opened once, within TokenTTL. Whether there is such a
// machine is for the caller to know. Its only error is machine.Unavailable, while the server does not listen.
func (s *Server) URL(machineID string) (string, error) {
	s.mu.Lock()
	base, problem := s.url, s.problem
	s.mu.Unlock()
	if base == "" {
		return "", problem
	}
	return base + execPath + s.tokens.Issue(machineID), nil
}

// Serve listens until ctx ends; then sessions end, too, and it returns nil. An address that cannot be listened on is
// tried again and again, since machines go on without consoles.
func (s *Server) Serve(ctx context.Context) error {
	for told := ""; ctx.Err() == nil; {
		told = s.listenOnce(ctx, told)
	}
	s.mu.Lock()
	s.url, s.closing = "", true
	s.mu.Unlock()
	s.sessions.Wait()
	return nil
}

// listenOnce listens until it fails or ctx ends. It returns the failure that was told last, so that each is told once.
func (s *Server) listenOnce(ctx context.Context, told string) string {
	err := s.listen(ctx)
	if ctx.Err() != nil { // listening ends with it, and that is no failure
		return told
	}
	s.mu.Lock()
	s.url, s.problem = "", machine.Wrap(machine.Unavailable, err, "serve consoles")
	s.mu.Unlock()
	if err.Error() != told {
		s.o.Logger.Error("consoles are not served; trying again", "address", s.o.Address, "error", err)
	}
	select {
	case <-time.After(listenPause):
	case <-ctx.Done():
	}
	return err.Error()
}

func (s *Server) listen(ctx context.Context) error {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", s.o.Address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	base, err := s.baseURL(l.Addr())
	if err != nil {
		return errors.Join(err, l.Close())
	}
	s.mu.Lock()
	s.url, s.problem = base, machine.Errorf(machine.Unavailable, "the console server is stopping")
	s.mu.Unlock()
	s.o.Logger.Info("consoles are served", "address", l.Addr().String(), "url", base)
	var protocols http.Protocols
	protocols.SetHTTP1(true) // a connection of HTTP/2 cannot be taken over
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTime, ReadTimeout: answerTime, WriteTimeout: answerTime,
		MaxHeaderBytes: headerBytes, Protocols: &protocols,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.o.Logger.Handler(), slog.LevelDebug),
	}
	server.SetKeepAlivesEnabled(false)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	l = limit(l, MaxSessions+spareConns)
	if s.cert != nil {
		l = tls.NewListener(l, &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: s.cert.get,
		})
	}
	return server.Serve(l)
}

// baseURL has no slash at its end.
func (s *Server) baseURL(addr net.Addr) (string, error) {
	if s.base != nil {
		return strings.TrimRight(s.base.String(), "/"), nil
	}
	host, _, err := net.SplitHostPort(s.o.Address)
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.To4() == nil {
			host = "::1"
		}
	}
	scheme := "http"
	if s.cert != nil {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}
