// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

const (
	clientBytes = 32 << 10        // written to a client at once
	inputBytes  = 4 << 10         // taken from a client at once
	lingerTime  = 1 * time.Second // for a client to take the last output of a closed machine
)

// AttachOptions say what a client wants. TakeOver has no meaning with ReadOnly.
type AttachOptions struct {
	ReadOnly bool // what it types is thrown away
	TakeOver bool // if another client types already, it may only watch from now on
}

// client is one attached reader.
type client struct {
	feed *feed
	rw   io.ReadWriteCloser
	wake chan struct{} // something to do for the output side
	left chan struct{} // the client has gone

	dropped atomic.Int64 // input that the guest did not take, not yet told

	// Guarded by the feed's lock.
	first     []byte // output of before, shown first
	pos       int64
	displaced bool // another one types now, not yet told
	linger    *time.Timer
}

// Attach connects rw with a machine's console: the last 64 KiB of output, then live, without gap or repetition; what
// is read from rw goes to the guest. It closes rw and returns when the client is gone (Read fails or ends), when the
// machine is closed (after a line that says so), both nil, or when ctx ends (its error). Closing rw must make its Read
// and Write return. A client that is too slow loses the oldest output and is told how much. One that another takes the
// keyboard from is told so in a line and goes on watching.
//
// A machine that is not open yet but expected is waited for, up to OpenPatience. machine.NotFound if the machine is not
// open, machine.FailedPrecondition if another client types; rw stays open then.
func (h *Hub) Attach(ctx context.Context, machineID string, o AttachOptions, rw io.ReadWriteCloser) error {
	c, err := h.join(ctx, machineID, o, rw)
	if err != nil {
		return err
	}
	return c.run(ctx)
}

// join registers a client, whose view begins at this moment. The caller must call run or leave.
func (h *Hub) join(ctx context.Context, machineID string, o AttachOptions, rw io.ReadWriteCloser) (*client, error) {
	f := h.await(ctx, machineID)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if f == nil {
		return nil, machine.Errorf(machine.NotFound, "machine %s has no open console", machineID)
	}
	past := f.past(Backlog)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, machine.Errorf(machine.NotFound, "machine %s has no open console", machineID)
	}
	if !o.ReadOnly && f.writer != nil && !o.TakeOver {
		return nil, machine.Errorf(machine.FailedPrecondition,
			"the console of machine %s is typed on by another client; take over or attach read-only", machineID)
	}
	c := &client{feed: f, rw: rw, wake: make(chan struct{}, 1), left: make(chan struct{})}
	c.pos = max(f.ring.start, f.ring.end-Backlog)
	c.first = f.before(past, Backlog-int(f.ring.end-c.pos))
	if !o.ReadOnly {
		if f.writer != nil {
			f.writer.displaced = true
			poke(f.writer.wake)
		}
		f.writer = c
	}
	f.clients[c] = struct{}{}
	h.clients.Add(1)
	return c, nil
}

func (c *client) leave() {
	f := c.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.clients, c)
	if f.writer == c {
		f.writer = nil
	}
	if c.linger != nil {
		c.linger.Stop()
	}
	f.hub.clients.Add(-1)
}

func (c *client) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = c.rw.Close() })
	defer stop()
	go c.input()
	c.output()
	c.leave()
	_ = c.rw.Close()
	<-c.left
	return ctx.Err()
}

// input passes on what the client types until it is gone, and then ends the output side, too.
func (c *client) input() {
	defer close(c.left)
	defer func() { _ = c.rw.Close() }()
	buf := make([]byte, inputBytes)
	for {
		n, err := c.rw.Read(buf)
		if n > 0 {
			if lost := c.feed.typed(c, buf[:n]); lost > 0 {
				c.dropped.Add(int64(lost))
				poke(c.wake)
			}
		}
		if err != nil {
			return
		}
	}
}

// output shows the console until the client is gone or the machine is closed.
func (c *client) output() {
	buf := make([]byte, clientBytes)
	for {
		before, n, after, closed := c.next(buf)
		for _, p := range [][]byte{before, buf[:n], after} {
			if len(p) == 0 {
				continue
			}
			if _, err := c.rw.Write(p); err != nil {
				return
			}
		}
		if closed {
			return
		}
		if n > 0 {
			continue
		}
		select {
		case <-c.wake:
		case <-c.left:
			return
		}
	}
}

// next returns what to show: before, then n bytes of buf, then after.
func (c *client) next(buf []byte) (before []byte, n int, after []byte, closed bool) {
	f := c.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	before, c.first = c.first, nil
	n, lost := f.ring.read(c.pos, buf)
	c.pos += lost + int64(n)
	if lost > 0 {
		before = append(before, marker(fmt.Sprintf("%d bytes left out here: this client was too slow", lost))...)
	}
	if c.displaced {
		c.displaced = false
		after = append(after, marker("another client has taken over; you are watching only")...)
	}
	if d := c.dropped.Swap(0); d > 0 {
		after = append(after, marker(fmt.Sprintf("the guest takes no input; %d bytes dropped", d))...)
	}
	if closed = f.closed && c.pos == f.ring.end; closed {
		after = append(after, marker("the console is closed")...)
	}
	return before, n, after, closed
}
