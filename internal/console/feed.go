// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// readBytes is small since every silent guest holds one such buffer.
const readBytes = 8 << 10

// feed is one machine's console.
type feed struct {
	hub     *Hub
	id      string
	ctx     context.Context // ends with CloseMachine
	cancel  context.CancelFunc
	kick    chan struct{} // look for the socket now
	done    chan struct{} // closed when the reader has ended
	record  recorder
	logPath string
	base    fs.FileInfo // the log as it was when this feed began; nil if there was none

	mu       sync.Mutex
	endpoint Endpoint
	tried    chan struct{} // closed once the present endpoint was dialled
	conn     net.Conn      // nil while not connected
	ring     ring
	clients  map[*client]struct{}
	writer   *client
	closed   bool // nothing more will be appended
}

func newFeed(h *Hub, id string, e Endpoint, logPath string) *feed {
	f := &feed{
		hub: h, id: id, endpoint: e, logPath: logPath, ring: ring{max: h.o.RingBytes},
		kick: make(chan struct{}, 1), done: make(chan struct{}), tried: make(chan struct{}),
		clients: map[*client]struct{}{},
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	if info, err := os.Stat(logPath); err == nil {
		f.base = info
	}
	f.record.init(f, logPath)
	return f
}

// change turns to another endpoint, or looks for the present one at once. What it returns is closed when that is done.
func (f *feed) change(e Endpoint, logPath string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.record.path = logPath
	if e != f.endpoint {
		f.endpoint = e
		closeOnce(f.tried)
		f.tried = make(chan struct{})
		if f.conn != nil {
			_ = f.conn.SetReadDeadline(time.Now().Add(drainTime))
		}
	}
	poke(f.kick)
	return f.tried
}

// read keeps a connection to the VMM until the machine is closed.
func (f *feed) read() {
	defer close(f.done)
	defer f.finish()
	buf := make([]byte, readBytes)
	pause := reconnectMin
	for f.ctx.Err() == nil {
		if f.session(buf) {
			pause = reconnectMin
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			pause = min(2*pause, reconnectMax)
		case <-f.kick:
			pause = reconnectMin
		case <-f.ctx.Done():
		}
		timer.Stop()
	}
}

// session reads one connection to its end and says whether it was a good one. One that ends at once without a word is
// not: trying again right away could go on for ever.
func (f *feed) session(buf []byte) (good bool) {
	f.mu.Lock()
	e, tried := f.endpoint, f.tried
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(f.ctx, dialTimeout)
	conn, err := f.hub.o.Dial(ctx, e.Socket)
	cancel()
	if err == nil {
		defer f.disconnected(conn)
	}
	f.mu.Lock()
	closeOnce(tried)
	if err != nil || f.endpoint != e {
		f.mu.Unlock()
		return false
	}
	f.conn = conn
	if f.ctx.Err() != nil {
		_ = conn.SetReadDeadline(time.Now().Add(drainTime))
	}
	f.mu.Unlock()
	f.hub.o.Logger.Debug("console connected", "machine", f.id, "socket", e.Socket, "replays", e.ReplaysBacklog)
	start := time.Now()
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			good = true
			f.append(buf[:n])
		}
		if err != nil {
			f.hub.o.Logger.Debug("console disconnected", "machine", f.id, "error", err)
			return good || time.Since(start) >= steady
		}
	}
}

func (f *feed) disconnected(conn net.Conn) {
	f.mu.Lock()
	if f.conn == conn {
		f.conn = nil
	}
	f.mu.Unlock()
	_ = conn.Close()
}

// append takes new output in and wakes whoever waits for it.
func (f *feed) append(p []byte) {
	f.record.waitForRoom(len(p))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ring.append(p)
	for c := range f.clients {
		poke(c.wake)
	}
	f.record.start()
}

// dialled waits until the present endpoint was, at most as long as Open does.
func (f *feed) dialled(ctx context.Context) {
	f.mu.Lock()
	tried := f.tried
	f.mu.Unlock()
	wait := time.NewTimer(firstDial)
	defer wait.Stop()
	select {
	case <-tried:
	case <-wait.C:
	case <-ctx.Done():
	}
}

// end makes reader, recorder and clients end, each after what is there already.
func (f *feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancel()
	closeOnce(f.tried)
	if f.conn != nil {
		_ = f.conn.SetReadDeadline(time.Now().Add(drainTime))
	}
}

// finish lets clients end. One that does not take what is left is cut off.
func (f *feed) finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for c := range f.clients {
		c.linger = time.AfterFunc(lingerTime, func() { _ = c.rw.Close() })
		poke(c.wake)
	}
}

func (f *feed) wait() {
	<-f.done
	timer := time.NewTimer(closeTime)
	defer timer.Stop()
	select {
	case <-f.record.idle():
	case <-timer.C:
		f.hub.o.Logger.Warn("console log is stuck and left behind", "machine", f.id)
	}
}

// past reads up to n bytes from the log of before this feed.
func (f *feed) past(n int) []byte { return history(f.logPath, f.base, n) }

// before returns the last n bytes of past, nothing if the ring has lost its beginning, which lies between.
func (f *feed) before(past []byte, n int) []byte {
	if f.ring.start > 0 || n <= 0 {
		return nil
	}
	return slices.Clone(past[max(0, len(past)-n):])
}

// typed sends what a client typed to the guest if that client may type. While no guest is there it is dropped. It
// returns how much a guest that does not listen has lost.
func (f *feed) typed(c *client, p []byte) (lost int) {
	f.mu.Lock()
	conn, may := f.conn, f.writer == c
	f.mu.Unlock()
	if conn == nil || !may {
		return 0
	}
	_ = conn.SetWriteDeadline(time.Now().Add(typingTime))
	n, err := conn.Write(p)
	if err != nil && os.IsTimeout(err) {
		return len(p) - n
	}
	return 0
}

// poke wakes the one who waits on c, now or when it next looks.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// closeOnce closes c unless it is closed; callers hold the lock that guards it.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}
