// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// Defaults and limits.
const (
	DefaultLogMaxBytes = 8 << 20
	DefaultRingBytes   = 1 << 20
	MinRingBytes       = 16 << 10
	// Backlog is how much of the past a new client sees, in bytes.
	Backlog = 64 << 10
	// LogPatience is how long the reader waits for a log that is a whole ring behind, before the log loses lines. It
	// is granted once until the log has caught up, so that a healthy disk loses nothing and a stuck one stalls nobody.
	LogPatience = 100 * time.Millisecond
	// OpenPatience is how long a client waits for the console of a machine that is expected to be opened.
	OpenPatience = 5 * time.Second
)

const (
	dialTimeout    = 5 * time.Second
	firstDial      = 250 * time.Millisecond // Open waits that long for the VMM to take the connection
	drainTime      = 50 * time.Millisecond  // a closed machine's last words are read for that long
	closeTime      = 2 * time.Second        // a stuck disk holds up CloseMachine for that long
	typingTime     = 2 * time.Second        // a guest that takes no input holds up the one who types for that long
	expectInterval = 250 * time.Millisecond // a machine that is not expected any more is not waited for any longer
	reconnectMin   = 5 * time.Millisecond
	reconnectMax   = time.Second
	steady         = time.Second // a connection that held that long was a good one
)

// Options are what a hub is made with.
type Options struct {
	LogMaxBytes int64 // of one log file, in bytes; 0 means DefaultLogMaxBytes
	Backups     int   // full log files to keep besides the one written to; 0 keeps none
	RingBytes   int   // output kept in memory per machine; 0 means DefaultRingBytes, at least MinRingBytes
	Logger      *slog.Logger
	// Dial connects to a VMM's serial socket; nil means a Unix stream socket.
	Dial func(ctx context.Context, socket string) (net.Conn, error)
	// Expected says whether a machine that is not open should be opened soon, as it runs: a daemon that was just started
	// first takes up its guests. A client waits for it then, up to OpenPatience. Nil expects none.
	Expected func(machineID string) bool

	openLog  func(path string) (sink, error)
	retryMin time.Duration // first pause after a failed write to the log
	retryMax time.Duration

	openPatience time.Duration
}

func (o *Options) complete() error {
	if o.LogMaxBytes == 0 {
		o.LogMaxBytes = DefaultLogMaxBytes
	}
	if o.RingBytes == 0 {
		o.RingBytes = DefaultRingBytes
	}
	switch {
	case o.LogMaxBytes < 0:
		return machine.InvalidField("LogMaxBytes", "must not be negative")
	case o.Backups < 0:
		return machine.InvalidField("Backups", "must not be negative")
	case o.RingBytes < MinRingBytes:
		return machine.InvalidField("RingBytes", "must be at least %d", MinRingBytes)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, socket string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}
	}
	if o.Expected == nil {
		o.Expected = func(string) bool { return false }
	}
	if o.openLog == nil {
		o.openLog = openSink
	}
	if o.openPatience == 0 {
		o.openPatience = OpenPatience
	}
	if o.retryMin == 0 {
		o.retryMin, o.retryMax = time.Second, 10*time.Second
	}
	return nil
}

// Endpoint is a VMM's serial console: a Unix stream socket with one client at a time, which may not exist yet, and may
// go and come back as the guest reboots.
type Endpoint struct {
	Socket         string
	ReplaysBacklog bool // the VMM keeps output while nobody is connected and hands it to the next client
}

// Stats counts what a hub has and had. The counters never go back.
type Stats struct {
	Machines  int   // open now
	Clients   int   // attached now
	LogErrors int64 // failed writes to log files
	LogLost   int64 // bytes that no log file got
}

// Hub holds the consoles of all open machines. Its methods may be called from several goroutines.
type Hub struct {
	o         Options
	clients   atomic.Int64
	logErrors atomic.Int64
	logLost   atomic.Int64

	mu     sync.Mutex
	closed bool
	feeds  map[string]*feed
	opened chan struct{} // closed, and made anew, when a machine is opened or the hub is closed
}

// New makes a hub without machines. Errors are machine.Invalid.
func New(o Options) (*Hub, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	return &Hub{o: o, feeds: map[string]*feed{}, opened: make(chan struct{})}, nil
}

// Open reads a machine's console from now on, whether or not the socket exists yet, until CloseMachine. It waits a
// moment (at most 250 ms) for the first connection, so that a guest booted after it is recorded from its first byte. It
// is idempotent: again with the same endpoint, it makes the hub look for the socket at once; with another, the hub
// changes over, keeping what it has and who is attached.
func (h *Hub) Open(machineID string, e Endpoint, logPath string) error {
	switch {
	case machineID == "" || strings.ContainsFunc(machineID, notInID):
		return machine.InvalidField("machineID", "%q cannot be asked for over the console socket", machineID)
	case e.Socket == "":
		return machine.InvalidField("endpoint.socket", "is missing")
	case logPath == "":
		return machine.InvalidField("logPath", "is missing")
	}
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return machine.Errorf(machine.Unavailable, "the console hub is closed")
	}
	f := h.feeds[machineID]
	var tried <-chan struct{}
	if f == nil {
		f = newFeed(h, machineID, e, logPath)
		h.feeds[machineID] = f
		h.announce()
		tried = f.tried
		go f.read()
	} else {
		tried = f.change(e, logPath)
	}
	h.mu.Unlock()
	wait := time.NewTimer(firstDial)
	defer wait.Stop()
	select {
	case <-tried:
	case <-wait.C:
	}
	return nil
}

// CloseMachine ends reading. What the guest said last is still recorded; clients get it and then end. It returns when
// the log is written, or after two seconds if the disk is stuck. Unknown machines are ignored.
func (h *Hub) CloseMachine(machineID string) {
	h.mu.Lock()
	f := h.feeds[machineID]
	delete(h.feeds, machineID)
	h.mu.Unlock()
	if f != nil {
		f.end()
		f.wait()
	}
}

// Close closes all machines. Open fails from then on.
func (h *Hub) Close() {
	h.mu.Lock()
	feeds := h.feeds
	h.feeds, h.closed = map[string]*feed{}, true
	h.announce()
	h.mu.Unlock()
	for _, f := range feeds {
		f.end()
	}
	for _, f := range feeds {
		f.wait()
	}
}

// Tail returns the last n bytes of a machine's output, fewer if there are not as many in memory and in the log from
// before; nil if the machine is not open.
func (h *Hub) Tail(machineID string, n int) []byte {
	f := h.feed(machineID)
	if f == nil || n <= 0 {
		return nil
	}
	past := f.past(n)
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.ring.tail(n)
	return append(f.before(past, n-len(now)), now...)
}

// Stats returns the counters.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	n := len(h.feeds)
	h.mu.Unlock()
	return Stats{Machines: n, Clients: int(h.clients.Load()), LogErrors: h.logErrors.Load(), LogLost: h.logLost.Load()}
}

func (h *Hub) feed(machineID string) *feed {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.feeds[machineID]
}

// announce wakes those who wait for a machine to be opened; callers hold the lock.
func (h *Hub) announce() {
	close(h.opened)
	h.opened = make(chan struct{})
}

// await returns a machine's feed once its VMM was dialled, so that nothing typed is lost. One that is not open is waited
// for while it is expected. Nil means that it is not open.
func (h *Hub) await(ctx context.Context, machineID string) *feed {
	ctx, cancel := context.WithTimeout(ctx, h.o.openPatience)
	defer cancel()
	for {
		h.mu.Lock()
		f, opened, closed := h.feeds[machineID], h.opened, h.closed
		h.mu.Unlock()
		switch {
		case f != nil:
			f.dialled(ctx)
			return f
		case closed || ctx.Err() != nil || !h.o.Expected(machineID):
			return nil
		}
		recheck := time.NewTimer(expectInterval)
		select {
		case <-opened:
		case <-recheck.C:
		case <-ctx.Done():
		}
		recheck.Stop()
	}
}

func notInID(r rune) bool { return r <= ' ' || r > '~' }
