// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// spdyVersions are the stream protocols of Kubernetes over SPDY, by name.
var spdyVersions = map[string]int{
	"v5.channel.k8s.io": 5, "v4.channel.k8s.io": 4, "v3.channel.k8s.io": 3, "v2.channel.k8s.io": 2, "channel.k8s.io": 1,
}

// spdyProtocols are the same, the best first.
var spdyProtocols = []string{
	"v5.channel.k8s.io", "v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io",
}

// Streams are told apart by a header of that name with these values.
const (
	streamType   = "streamType"
	streamStdin  = "stdin"
	streamStdout = "stdout"
	streamError  = "error"
	streamResize = "resize"
)

const (
	maxStreams = 16               // a client that opens more is no client of ours
	gatherTime = 30 * time.Second // for a client to open its streams, as Kubernetes grants
	graceTime  = time.Second      // for those that it may do without
	// maxSPDYFrame bounds what a client can make the daemon hold. client-go sends at most 32 KiB at once.
	maxSPDYFrame = 256 << 10
)

var (
	errFrame   = errors.New("a SPDY frame is too long")
	errStreams = errors.New("the client did not open its streams")
)

func isSPDY(r *http.Request) bool {
	return httpstream.IsUpgradeRequest(r) && strings.EqualFold(r.Header.Get("Upgrade"), spdy.HeaderSpdy31)
}

// spdyTransport is a client with one SPDY stream for each direction and purpose.
type spdyTransport struct {
	conn    *liveConn
	session httpstream.Connection
	arrived chan opened
	input   chan []byte
	done    chan struct{} // closed by cut

	// Used by gather, and by latecomers after it.
	taken           map[string]bool
	stdout, failure httpstream.Stream

	mu      sync.Mutex
	ended   bool
	streams []httpstream.Stream
}

// opened is a stream of the client's; it may be written to once replied is closed.
type opened struct {
	httpstream.Stream
	replied <-chan struct{}
}

// upgradeSPDY answers the request and takes its connection over. The protocol is in the answer's header already.
func upgradeSPDY(w http.ResponseWriter, keepAlive time.Duration) (*spdyTransport, error) {
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", spdy.HeaderSpdy31)
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, err := hijack(w, keepAlive)
	if err != nil {
		return nil, err
	}
	t := &spdyTransport{
		conn: conn, arrived: make(chan opened, maxStreams), input: make(chan []byte), done: make(chan struct{}),
		taken: map[string]bool{},
	}
	if t.session, err = spdy.NewServerConnectionWithPings(&spdyConn{liveConn: conn}, t.open, keepAlive); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return t, nil
}

// open is called for each new stream. It never returns an error, since the library would print it.
func (t *spdyTransport) open(s httpstream.Stream, replied <-chan struct{}) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || len(t.streams) == maxStreams {
		_ = t.conn.Close()
		_ = s.Reset()
		return nil
	}
	t.streams = append(t.streams, s)
	t.arrived <- opened{s, replied}
	return nil
}

// gather waits for the client's streams. Output and error are needed; the others are not waited for much longer, and
// may come later. None is written to before: a client may read only once it has them all.
func (t *spdyTransport) gather(version int, patience time.Duration) error {
	want := 4
	if version < 3 {
		want = 3 // there are no resizes
	}
	all := time.NewTimer(patience)
	defer all.Stop()
	var grace <-chan time.Time
	for len(t.taken) < want {
		select {
		case s := <-t.arrived:
			if err := t.take(s); err != nil {
				return err
			}
			if t.stdout != nil && t.failure != nil && grace == nil {
				grace = time.After(graceTime)
			}
		case <-grace:
			want = 0
		case <-t.gone():
			return errStreams
		case <-all.C:
			return errStreams
		}
	}
	if t.stdout == nil || t.failure == nil {
		return errStreams
	}
	go t.latecomers()
	return nil
}

func (t *spdyTransport) latecomers() {
	for {
		select {
		case s := <-t.arrived:
			_ = t.take(s)
		case <-t.gone():
			if !t.taken[streamStdin] {
				close(t.input)
			}
			return
		}
	}
}

// take gives a stream its purpose. What comes in on any but stdin is dropped, so that it blocks nobody.
func (t *spdyTransport) take(s opened) error {
	select {
	case <-s.replied:
	case <-t.gone():
		return errStreams
	}
	if t.conn.isBroken() { // the reply was not sent, and the library would wait for it for ever
		return errStreams
	}
	kind := s.Headers().Get(streamType)
	expected := kind == streamStdin || kind == streamStdout || kind == streamError || kind == streamResize
	if !expected || t.taken[kind] { // nothing will come on it
		go drain(s)
		return s.Close()
	}
	t.taken[kind] = true
	switch kind {
	case streamStdin:
		go t.read(s)
		return nil
	case streamStdout:
		t.stdout = s
	case streamError:
		t.failure = s
	}
	go drain(s)
	return nil
}

// read passes on what is typed until the client has closed the stream, even if it has hung up by now.
func (t *spdyTransport) read(s io.Reader) {
	defer close(t.input)
	for {
		buf := make([]byte, typedBytes)
		n, err := s.Read(buf)
		if n > 0 {
			select {
			case t.input <- buf[:n]:
			case <-t.done:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func drain(r io.Reader) { _, _ = io.Copy(io.Discard, r) }

func (t *spdyTransport) typed() <-chan []byte        { return t.input }
func (t *spdyTransport) hurry()                      { t.conn.hurry() }
func (t *spdyTransport) Write(p []byte) (int, error) { return t.stdout.Write(p) }

func (t *spdyTransport) gone() <-chan bool { return t.session.CloseChan() }

func (t *spdyTransport) finish(ending []byte) {
	t.hurry()
	if len(ending) > 0 {
		_, _ = t.failure.Write(ending)
	}
	_ = t.failure.Close()
	_ = t.stdout.Close()
}

// cut resets every stream: the library's goroutines wait for readers of each, even without a connection.
func (t *spdyTransport) cut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	close(t.done)
	_ = t.conn.Close()
	for _, s := range t.streams {
		_ = s.Reset()
	}
	_ = t.session.Close()
}

// spdyConn looks at the lengths of incoming frames: the library takes up to 16 MiB each, and hundreds of them.
type spdyConn struct {
	*liveConn
	header []byte // of the next frame, as far as it came
	rest   int    // of the present frame
}

// spdyHeader is the length of a frame's header; its last three bytes are the length of what follows.
const spdyHeader = 8

func (c *spdyConn) Read(p []byte) (int, error) {
	n, err := c.liveConn.Read(p)
	for seen := p[:n]; len(seen) > 0; {
		if c.rest > 0 {
			skip := min(c.rest, len(seen))
			seen, c.rest = seen[skip:], c.rest-skip
			continue
		}
		part := min(spdyHeader-len(c.header), len(seen))
		c.header, seen = append(c.header, seen[:part]...), seen[part:]
		if len(c.header) < spdyHeader {
			continue
		}
		c.rest = int(binary.BigEndian.Uint32(c.header[4:]) & 0xffffff)
		c.header = c.header[:0]
		if c.rest > maxSPDYFrame {
			_ = c.Close()
			return 0, errFrame
		}
	}
	return n, err
}
