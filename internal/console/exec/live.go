// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"time"
)

// windowIntervals is how many keep-alive intervals a client may be silent or take no output.
const windowIntervals = 3

// hurryTime is how long a client has to take the last words.
const hurryTime = time.Second

// liveConn is a connection on which something must come in, and what is written must go out, within a window. Pings see
// to the former, so a client that is cut off without a word is noticed.
type liveConn struct {
	net.Conn
	in     *bufio.Reader // may hold what came right behind the request
	window time.Duration

	closing sync.Once
	mu      sync.Mutex
	limit   time.Time // for all writes from now on; zero while there is none
	broken  bool      // a write failed
}

// hijack takes over a request's connection. What was answered so far goes out first.
func hijack(w http.ResponseWriter, keepAlive time.Duration) (*liveConn, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	return &liveConn{Conn: conn, in: rw.Reader, window: windowIntervals * keepAlive}, nil
}

func (c *liveConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.window)); err != nil {
		return 0, err
	}
	return c.in.Read(p)
}

func (c *liveConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	end := c.limit
	if end.IsZero() {
		end = time.Now().Add(c.window)
	}
	err := c.SetWriteDeadline(end)
	c.mu.Unlock()
	n := 0
	if err == nil {
		n, err = c.Conn.Write(p)
	}
	if err != nil {
		c.mu.Lock()
		c.broken = true
		c.mu.Unlock()
	}
	return n, err
}

// isBroken says whether a write has failed.
func (c *liveConn) isBroken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// hurry gives all writes, the present one included, a moment from now.
func (c *liveConn) hurry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limit.IsZero() {
		c.limit = time.Now().Add(hurryTime)
		_ = c.SetWriteDeadline(c.limit)
	}
}

// Close may be called again.
func (c *liveConn) Close() error {
	var err error
	c.closing.Do(func() { err = c.Conn.Close() })
	return err
}
