// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

const (
	// DefaultTimeout is far above what an agent needs (1 ms for a ping, some 10 ms in an emulated guest) and far
	// below what a person waits for.
	DefaultTimeout = 5 * time.Second
	// DefaultShutdownWait is how long a refusal of a shutdown is waited for. An agent whose shutdown program fails
	// says so within some milliseconds; one that succeeds says nothing.
	DefaultShutdownWait = time.Second
)

// Options are the options of New.
type Options struct {
	// Dial opens the channel to the agent; it must honour ctx. Required.
	Dial func(ctx context.Context) (net.Conn, error)
	// Now makes the ids of calls; default time.Now.
	Now func() time.Time
	// Timeout bounds each call from the moment it has its turn, dialling included; default DefaultTimeout.
	Timeout time.Duration
	// ShutdownWait bounds the wait for a refusal of Shutdown; default DefaultShutdownWait, at most Timeout.
	ShutdownWait time.Duration
}

// Client asks the agent of one machine. Calls may come from several goroutines and are made one after the other, each
// over a connection of its own. Use one client for a machine: the channel serves nobody else meanwhile.
type Client struct {
	opts Options
	turn chan struct{}
	ids  atomic.Int64
}

// New returns a client. It dials nothing. Errors are machine.Invalid.
func New(o Options) (*Client, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.ShutdownWait == 0 {
		o.ShutdownWait = min(DefaultShutdownWait, o.Timeout)
	}
	switch {
	case o.Dial == nil:
		return nil, machine.InvalidField("dial", "must not be empty")
	case o.Timeout < 0:
		return nil, machine.InvalidField("timeout", "is %s, must be positive", o.Timeout)
	case o.ShutdownWait < 0 || o.ShutdownWait > o.Timeout:
		return nil, machine.InvalidField("shutdownWait", "is %s, must be positive and at most %s", o.ShutdownWait, o.Timeout)
	}
	c := &Client{opts: o, turn: make(chan struct{}, 1)}
	// An answer to an earlier client of the same channel must not look like one to this.
	c.ids.Store(o.Now().UnixNano() & (1<<53 - 1))
	return c, nil
}

// session runs f over a channel on which the agent has just proven that it is there and listens.
func (c *Client) session(parent context.Context, doing string, f func(ctx context.Context, s *stream) error) error {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-parent.Done():
		return machine.Wrap(machine.Unavailable, fmt.Errorf("wait for another call: %w", parent.Err()), doing)
	}
	ctx, cancel := context.WithTimeout(parent, c.opts.Timeout)
	defer cancel()
	conn, err := c.opts.Dial(ctx)
	if err != nil {
		return failed(parent, ctx, doing, ErrNoAgent, err)
	}
	defer conn.Close()
	// Whatever ends the call, timeout or caller, ends what waits for the channel.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	s := newStream(conn)
	if err := s.sync(c.ids.Add(1)); err != nil {
		return failed(parent, ctx, doing, ErrNoAgent, err)
	}
	return f(ctx, s)
}

// call runs one command and reads its result into result, unless that is nil.
func (c *Client) call(ctx context.Context, command string, result any) error {
	return c.session(ctx, command, func(own context.Context, s *stream) error {
		if err := s.send(command, nil); err != nil {
			return failed(ctx, own, command, ErrProtocol, err)
		}
		answer, err := s.answer()
		if err != nil {
			return failed(ctx, own, command, ErrProtocol, err)
		}
		if e := answer.Error; e != nil {
			return refused(command, e.Class, e.Desc)
		}
		if err := answer.decode(result); err != nil {
			return failed(ctx, own, command, ErrProtocol, err)
		}
		return nil
	})
}
