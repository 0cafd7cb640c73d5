// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package web runs the daemon's small HTTP servers: health, metrics, status. It exists so that each of them is bounded
// in time, memory and connections: whoever floods one must not take file descriptors or processors from the IRI
// socket. When there are too many connections the one that has waited longest without a request makes room, so that a
// client who asks at once is still answered. It must never keep the daemon from its work because a port is taken, and
// never read a request's body.
package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Bounds of a server. The requests are small and come seldom: a probe a second, a scrape every few seconds.
const (
	DefaultMaxConnections = 64
	headerTimeout         = 5 * time.Second
	requestTimeout        = 10 * time.Second
	answerTimeout         = 30 * time.Second
	idleTimeout           = time.Minute
	maxHeaderBytes        = 16 << 10
	maxBodyBytes          = 4 << 10
	stopPatience          = 2 * time.Second // as libvirt-provider's --servers-*-gracefultimeout
	retryInterval         = 5 * time.Second
)

// Options is what a server is made of.
type Options struct {
	Name           string // in the log: "health"
	Address        string // host:port
	Handler        http.Handler
	MaxConnections int // default 64
	Logger         *slog.Logger
	Retry          time.Duration // pause before a port that is taken is tried again; default 5s
	// Listen opens the port; default: TCP on IPv4 and IPv6.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	// Opened is told the address of the open port; may be nil.
	Opened func(net.Addr)
}

func (o *Options) complete() error {
	switch {
	case o.Address == "":
		return errors.New("web: option Address is missing")
	case o.Handler == nil:
		return errors.New("web: option Handler is missing")
	case o.MaxConnections < 0:
		return fmt.Errorf("web: option MaxConnections is %d", o.MaxConnections)
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = DefaultMaxConnections
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Retry <= 0 {
		o.Retry = retryInterval
	}
	if o.Listen == nil {
		o.Listen = func(ctx context.Context, address string) (net.Listener, error) {
			return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		}
	}
	if o.Opened == nil {
		o.Opened = func(net.Addr) {}
	}
	return nil
}

// Serve answers until ctx ends; requests under way get 2 s then. A port that cannot be opened is tried again and
// again, and logged once: an old daemon may still hold it, and guests matter more than a page about them. The error is
// about the options alone.
func Serve(ctx context.Context, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	told := false
	for ctx.Err() == nil {
		err := serveOnce(ctx, o, func() { told = false })
		if !told && ctx.Err() == nil {
			o.Logger.Error("HTTP server not open", "server", o.Name, "address", o.Address, "error", err, "retry_in", o.Retry)
			told = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(o.Retry):
		}
	}
	return nil
}

func serveOnce(ctx context.Context, o Options, opened func()) error {
	listener, err := o.Listen(ctx, o.Address)
	if err != nil {
		return err
	}
	opened()
	o.Logger.Info("HTTP server open", "server", o.Name, "address", listener.Addr().String())
	o.Opened(listener.Addr())
	book := newBook(o.MaxConnections)
	server := &http.Server{
		Handler:           book.count(http.MaxBytesHandler(o.Handler, maxBodyBytes)),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes, ConnState: book.state, ConnContext: book.context,
		ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug), // a flood must not fill the log
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
		defer cancel()
		if server.Shutdown(bounded) != nil {
			_ = server.Close()
		}
	})
	err = server.Serve(listener)
	if stop() {
		_ = server.Close() // it ended by itself
		return err
	}
	<-stopped
	return err
}
