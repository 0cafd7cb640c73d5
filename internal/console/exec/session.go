// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
)

// greeting is what a client sees first, the words of libvirt's console.
const greeting = "Escape character is ^] (Ctrl + ])\r\n"

// typedBytes is what is taken from a client at once.
const typedBytes = 4 << 10

// transport is one client, whatever it speaks.
type transport interface {
	// typed is closed when the client has no more to type or is gone.
	typed() <-chan []byte
	// gone is closed when the client is.
	gone() <-chan bool
	// Write shows output. It fails when the client is gone, and soon after hurry.
	Write(p []byte) (int, error)
	// hurry gives whatever is being written a moment.
	hurry()
	// finish says how the session ended and that nothing more will come.
	finish(ending []byte)
	// cut ends everything at once, all goroutines of the transport included. It is called once.
	cut()
}

// converse runs a session until the client leaves, the console is closed or ctx ends.
func converse(ctx context.Context, a Attacher, machineID string, version int, t transport) error {
	defer t.cut()
	if _, err := io.WriteString(t, greeting); err != nil {
		return nil
	}
	// A console belongs to whoever came last: the one before may be a client that is long gone, or an operator's who
	// went home, and goes on watching.
	err := a.Attach(ctx, machineID, console.AttachOptions{TakeOver: true}, &terminal{t: t, closed: make(chan struct{})})
	t.finish(ending(version, err))
	depart(t)
	return err
}

// depart lets the client go by itself, which it does when it has read all, and drops what it still types.
func depart(t transport) {
	wait := time.NewTimer(hurryTime)
	defer wait.Stop()
	for typed := t.typed(); ; {
		select {
		case _, ok := <-typed:
			if !ok {
				typed = nil
			}
		case <-t.gone():
			return
		case <-wait.C:
			return
		}
	}
}

// terminal is a client as the console hub wants it.
type terminal struct {
	t       transport
	rest    []byte // typed and not yet read
	once    sync.Once
	closed  chan struct{}
	escaped bool
}

// Read returns what was typed, up to the escape character, which ends the session. A client that has no more to type
// may still watch, so only its leaving is an end, too.
func (t *terminal) Read(p []byte) (int, error) {
	for len(t.rest) == 0 {
		if t.escaped {
			return 0, io.EOF
		}
		select {
		case chunk, ok := <-t.t.typed():
			if !ok {
				return 0, t.watch()
			}
			t.rest = chunk
			if i := bytes.IndexByte(chunk, console.Escape); i >= 0 {
				t.rest, t.escaped = chunk[:i], true
			}
		case <-t.closed:
			return 0, io.EOF
		}
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}

func (t *terminal) watch() error {
	select {
	case <-t.t.gone():
	case <-t.closed:
	}
	return io.EOF
}

func (t *terminal) Write(p []byte) (int, error) { return t.t.Write(p) }

// Close makes Read return at once and Write within a moment. The transport stays, to say how it ended.
func (t *terminal) Close() error {
	t.once.Do(func() {
		close(t.closed)
		t.t.hurry()
	})
	return nil
}
