// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

const (
	patience = 60 * time.Second
	guestID  = "4f0c0e7e-7c0f-4d7e-9d0c-1c1f6b1f3a55"
)

// serial is a VMM's serial console: it says what it is told to, and hears what is typed.
type serial struct {
	t    testing.TB
	conn chan net.Conn

	mu    sync.Mutex
	heard bytes.Buffer
}

func newSerial(t testing.TB, h *console.Hub) *serial {
	t.Helper()
	dir, err := os.MkdirTemp("", "exec") // short enough for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := &serial{t: t, conn: make(chan net.Conn, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		s.conn <- conn
		_, _ = io.Copy(s, conn)
	}()
	t.Cleanup(func() {
		_ = l.Close()
		h.Close()
		<-done
		_ = os.RemoveAll(dir)
	})
	if err := h.Open(guestID, console.Endpoint{Socket: l.Addr().String()}, filepath.Join(dir, "console.log")); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *serial) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard.Write(p)
}

func (s *serial) say(text string) {
	s.t.Helper()
	conn := <-s.conn
	s.conn <- conn
	if _, err := io.WriteString(conn, text); err != nil {
		s.t.Fatal(err)
	}
}

func (s *serial) hears(text string) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("the guest hears %q", text), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(s.heard.String(), text)
	})
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came about: %s", what)
		}
	}
}

func newHub(t testing.TB) *console.Hub {
	t.Helper()
	h, err := console.New(console.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// start runs a server until the test ends.
func start(t testing.TB, o Options) *Server {
	t.Helper()
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("the server does not end")
		}
	})
	eventually(t, "the server listens", func() bool { _, err := s.URL("x"); return err == nil })
	return s
}

func urlOf(t testing.TB, s *Server) string {
	t.Helper()
	u, err := s.URL(guestID)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// client is a remote end: what it sees is collected.
type client struct {
	t        testing.TB
	mu       sync.Mutex
	seen     bytes.Buffer
	ending   bytes.Buffer
	typeIn   func(p []byte) error
	endInput func() error
	hangUp   func() error
	ended    chan struct{} // closed when output and error stream have ended
}

func (c *client) collect(into *bytes.Buffer, r io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		c.mu.Lock()
		into.Write(buf[:n])
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *client) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen.String()
}

func (c *client) sees(text string) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("the client sees %q", text), func() bool { return strings.Contains(c.text(), text) })
}

func (c *client) types(text string) {
	c.t.Helper()
	if err := c.typeIn([]byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// endsWith waits for the end and compares what the error stream said.
func (c *client) endsWith(want string) {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(patience):
		c.t.Fatal("the session does not end")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := c.ending.String(); got != want {
		c.t.Errorf("the error stream says %q, want %q", got, want)
	}
}

// dialSPDY opens the streams as client-go does.
func dialSPDY(t testing.TB, method, target string, protocols ...string) *client {
	t.Helper()
	session, streams := openSPDY(t, method, target, protocols, streamError, streamStdin, streamStdout, streamResize)
	return spdyClient(t, session, streams)
}

func openSPDY(t testing.TB, method, target string, protocols []string, kinds ...string) (httpstream.Connection, map[string]httpstream.Stream) {
	t.Helper()
	transport, err := spdy.NewRoundTripper(nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequest(method, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header[httpstream.HeaderProtocolVersion] = protocols
	answer, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	session, err := transport.NewConnection(answer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	if got := answer.Header.Get(httpstream.HeaderProtocolVersion); got != protocols[0] {
		t.Errorf("protocol %q was agreed on, want %q", got, protocols[0])
	}
	streams := map[string]httpstream.Stream{}
	for _, kind := range kinds {
		if streams[kind], err = session.CreateStream(http.Header{streamType: {kind}}); err != nil {
			t.Fatal(err)
		}
	}
	return session, streams
}

func spdyClient(t testing.TB, session httpstream.Connection, streams map[string]httpstream.Stream) *client {
	c := &client{t: t, ended: make(chan struct{}), hangUp: session.Close}
	if in := streams[streamStdin]; in != nil {
		c.typeIn = func(p []byte) error { _, err := in.Write(p); return err }
		c.endInput = in.Close
	}
	_ = streams[streamError].Close() // nothing is said on it
	var both sync.WaitGroup
	both.Go(func() { c.collect(&c.seen, streams[streamStdout]) })
	both.Go(func() { c.collect(&c.ending, streams[streamError]) })
	go func() { both.Wait(); close(c.ended); _ = session.Close() }()
	t.Cleanup(func() { _ = session.Close(); <-c.ended })
	return c
}

// wsClient is the least of a WebSocket client: its frames are final and masked.
type wsClient struct {
	net.Conn
	in *bufio.Reader
}

func dialWS(t testing.TB, target, protocol string, headers ...string) (*wsClient, *http.Response) {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	lines := append([]string{
		"GET " + u.RequestURI() + " HTTP/1.1", "Host: machine.example", "Connection: Upgrade", "Upgrade: websocket",
		"Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
	}, headers...)
	if protocol != "" {
		lines = append(lines, "Sec-WebSocket-Protocol: "+protocol)
	}
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	c := &wsClient{conn, bufio.NewReader(conn)}
	answer, err := http.ReadResponse(c.in, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, answer
}

func (c *wsClient) send(first byte, payload []byte) error {
	out := []byte{first}
	switch n := len(payload); {
	case n <= maxControl:
		out = append(out, maskBit|byte(n))
	case n <= 0xffff:
		out = binary.BigEndian.AppendUint16(append(out, maskBit|length16), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, maskBit|length64), uint64(n))
	}
	var mask [4]byte
	_, _ = rand.Read(mask[:])
	out = append(out, mask[:]...)
	for i, b := range payload {
		out = append(out, b^mask[i%4])
	}
	_, err := c.Write(out)
	return err
}

func (c *wsClient) receive() (op byte, payload []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(c.in, head[:2]); err != nil {
		return 0, nil, err
	}
	op, size := head[0], uint64(head[1])
	more := map[uint64]int{length16: 2, length64: 8}[size]
	if _, err := io.ReadFull(c.in, head[:more]); err != nil {
		return 0, nil, err
	}
	switch more {
	case 2:
		size = uint64(binary.BigEndian.Uint16(head[:]))
	case 8:
		size = binary.BigEndian.Uint64(head[:])
	}
	payload = make([]byte, size)
	_, err = io.ReadFull(c.in, payload)
	return op &^ finalBit, payload, err
}

// attachWS runs a client of a channel protocol.
func attachWS(t testing.TB, target, protocol string) *client {
	t.Helper()
	ws, answer := dialWS(t, target, protocol)
	if answer.StatusCode != http.StatusSwitchingProtocols || answer.Header.Get("Sec-WebSocket-Protocol") != protocol ||
		answer.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" { // RFC 6455's example
		t.Fatalf("answer %s %v", answer.Status, answer.Header)
	}
	text := strings.Contains(protocol, "base64")
	c := &client{t: t, ended: make(chan struct{}), hangUp: ws.Close}
	c.typeIn = func(p []byte) error {
		if text {
			return ws.send(finalBit|opText, []byte("0"+base64.StdEncoding.EncodeToString(p)))
		}
		return ws.send(finalBit|opBinary, append([]byte{channelStdin}, p...))
	}
	c.endInput = func() error { return ws.send(finalBit|opBinary, []byte{channelClose, channelStdin}) }
	go func() {
		defer close(c.ended)
		for {
			op, p, err := ws.receive()
			if err != nil {
				return
			}
			switch {
			case op == opPing:
				_ = ws.send(finalBit|opPong, p)
				continue
			case op == opClose:
				_ = ws.send(finalBit|opClose, p)
				continue
			case text && op == opText:
				decoded, err := base64.StdEncoding.DecodeString(string(p[1:]))
				if err != nil {
					return
				}
				p = append([]byte{p[0] - '0'}, decoded...)
			}
			c.mu.Lock()
			switch p[0] {
			case channelStdout:
				c.seen.Write(p[1:])
			case channelError:
				c.ending.Write(p[1:])
			}
			c.mu.Unlock()
		}
	}()
	t.Cleanup(func() { _ = ws.Close(); <-c.ended })
	return c
}
