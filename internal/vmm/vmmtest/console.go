// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmmtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// console reads a serial console from its socket, again and again: a VMM may make the socket anew when the guest
// restarts.
type console struct {
	path string
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	conn    net.Conn
	text    strings.Builder
	changed chan struct{} // closed and made anew when text grew or somebody connected
}

func openConsole(path string) *console {
	ctx, stop := context.WithCancel(context.Background())
	c := &console{path: path, stop: stop, done: make(chan struct{}), changed: make(chan struct{})}
	go c.run(ctx)
	return c
}

func (c *console) run(ctx context.Context) {
	defer close(c.done)
	for ctx.Err() == nil {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", c.path)
		if err != nil {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		c.serve(ctx, conn)
	}
}

func (c *console) serve(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	c.mu.Lock()
	c.conn = conn
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
	buffer := make([]byte, 4096)
	for {
		n, err := conn.Read(buffer)
		c.mu.Lock()
		c.text.Write(buffer[:n])
		close(c.changed)
		c.changed = make(chan struct{})
		if err != nil {
			c.conn = nil
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// Write types.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return 0, errors.New("the console is not connected")
	}
	return c.conn.Write(p)
}

// await waits until text has been read n times.
func (c *console) await(ctx context.Context, text string, n int) error {
	for {
		c.mu.Lock()
		got, changed := c.text.String(), c.changed
		c.mu.Unlock()
		if strings.Count(got, text) >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("the console has not shown %q %d times but: %.4000q", text, n, got)
		}
	}
}

// connected waits until something can be typed.
func (c *console) connected(ctx context.Context) error {
	for {
		c.mu.Lock()
		conn, changed := c.conn, c.changed
		c.mu.Unlock()
		if conn != nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("connect to the console: %w", ctx.Err())
		}
	}
}

func (c *console) close() {
	c.stop()
	<-c.done
}
