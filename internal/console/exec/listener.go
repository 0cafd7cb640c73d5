// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// limit makes a listener hang up on connections beyond n, so that a flood takes no more than n file descriptors from
// the rest of the daemon.
func limit(l net.Listener, n int) net.Listener {
	return &limited{Listener: l, room: make(chan struct{}, n)}
}

type limited struct {
	net.Listener
	room chan struct{}
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.room <- struct{}{}:
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { <-l.room })}, nil
		default:
			_ = conn.Close()
		}
	}
}

type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// certificate is read again when its files have changed. New files that do not fit leave the old in use.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu    sync.Mutex
	times [2]time.Time
	pair  *tls.Certificate
}

func newCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	times, err := c.stat()
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	if err := c.load(times); err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	return c, nil
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	times, err := c.stat()
	if err == nil && times != c.times {
		err = c.load(times)
	}
	if err != nil {
		c.log.Warn("the new certificate cannot be read; the old stays in use", "error", err)
	}
	return c.pair, nil
}

func (c *certificate) stat() (times [2]time.Time, err error) {
	for i, path := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(path)
		if err != nil {
			return times, err
		}
		times[i] = info.ModTime()
	}
	return times, nil
}

func (c *certificate) load(times [2]time.Time) error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	c.pair, c.times = &pair, times
	return nil
}
