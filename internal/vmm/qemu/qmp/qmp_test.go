// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

const (
	patience = 30 * time.Second
	greeting = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian"}, "capabilities": ["oob"]}}`
)

// server is one scripted QEMU. The script runs on its own goroutine for each
// connection, after greeting and handshake when polite.
type server struct {
	path string
	l    net.Listener
	wg   sync.WaitGroup
}

// peer is the server's side of a connection.
type peer struct {
	*net.UnixConn
	lines *bufio.Scanner
}

type request struct {
	Execute   string          `json:"execute"`
	Arguments json.RawMessage `json:"arguments"`
	ID        string          `json:"id"`
}

func (p *peer) next() (request, bool) {
	var r request
	if !p.lines.Scan() {
		return r, false
	}
	return r, json.Unmarshal(p.lines.Bytes(), &r) == nil
}

func (p *peer) say(format string, args ...any) {
	fmt.Fprintf(p, format+"\r\n", args...)
}

func (p *peer) ok(r request) { p.say(`{"return": {}, "id": %q}`, r.ID) }

// handshake greets and accepts the capabilities.
func (p *peer) handshake() {
	p.say("%s", greeting)
	if r, ok := p.next(); ok {
		p.ok(r)
	}
}

func serve(t *testing.T, script func(*peer)) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "qmp") // t.TempDir would be too long for sun_path
	if err != nil {
		t.Fatal(err)
	}
	s := &server{path: filepath.Join(dir, "s")}
	if s.l, err = net.Listen("unix", s.path); err != nil {
		t.Fatal(err)
	}
	s.wg.Go(func() {
		for {
			conn, err := s.l.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() {
				defer conn.Close()
				script(&peer{UnixConn: conn.(*net.UnixConn), lines: bufio.NewScanner(conn)})
			})
		}
	})
	t.Cleanup(func() {
		s.l.Close()
		s.wg.Wait()
		os.RemoveAll(dir)
	})
	return s
}

func dial(t *testing.T, s *server, opts Options) *Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := Dial(ctx, s.path, opts)
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestGreetingTellsTheVersion(t *testing.T) {
	c := dial(t, serve(t, func(p *peer) { p.handshake(); p.next() }), Options{})
	if diff := cmp.Diff(Version{7, 2, 22, "Debian"}, c.Version()); diff != "" {
		t.Errorf("version (-want +got):\n%s", diff)
	}
	if got := c.Version().String(); got != "7.2.22" {
		t.Errorf("version %q", got)
	}
	if c.PeerPID() != os.Getpid() {
		t.Errorf("peer pid %d, want our own %d", c.PeerPID(), os.Getpid())
	}
}

func TestRepliesFindTheirCallersInAnyOrder(t *testing.T) {
	const n = 20
	c := dial(t, serve(t, func(p *peer) {
		p.handshake()
		var all []request
		for range n {
			r, ok := p.next()
			if !ok {
				return
			}
			all = append(all, r)
		}
		for i := len(all) - 1; i >= 0; i-- {
			p.say(`{"return": {"echo": %q}, "id": %q}`, all[i].Execute, all[i].ID)
		}
		p.next()
	}), Options{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			name := fmt.Sprintf("command-%d", i)
			var got struct{ Echo string }
			if err := c.Execute(t.Context(), name, nil, &got); err != nil || got.Echo != name {
				t.Errorf("%s: got %q, %v", name, got.Echo, err)
			}
		})
	}
	wg.Wait()
}

func TestRefusalHasClassAndText(t *testing.T) {
	c := dial(t, serve(t, func(p *peer) {
		p.handshake()
		r, _ := p.next()
		p.say(`{"id": %q, "error": {"class": "DeviceNotFound", "desc": "Device 'x' not found"}}`, r.ID)
		p.next()
	}), Options{})
	err := c.Execute(t.Context(), "device_del", map[string]string{"id": "x"}, nil)
	if !HasClass(err, "DeviceNotFound") || HasClass(err, "GenericError") {
		t.Errorf("class of %v", err)
	}
	if want := "device_del: Device 'x' not found (DeviceNotFound)"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestEventsInterleavedWithRepliesKeepTheirOrder(t *testing.T) {
	var got []string
	c := dial(t, serve(t, func(p *peer) {
		p.handshake()
		r, _ := p.next()
		p.say(`{"event": "STOP", "timestamp": {"seconds": 5, "microseconds": 7}}`)
		p.say(`{"event": "SHUTDOWN", "data": {"guest": true}, "timestamp": {"seconds": 6, "microseconds": 0}}`)
		p.ok(r)
		p.next()
	}), Options{OnEvent: func(e Event) { got = append(got, e.Name+string(e.Data)+e.At.UTC().Format(" 05.000000")) }})
	if err := c.Execute(t.Context(), "x", nil, nil); err != nil {
		t.Fatal(err)
	}
	want := []string{"STOP 05.000007", `SHUTDOWN{"guest": true} 06.000000`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestCommandWithoutReplyEndsWithItsContextAndALateReplyIsDropped(t *testing.T) {
	c := dial(t, serve(t, func(p *peer) {
		p.handshake()
		first, _ := p.next()
		second, _ := p.next()
		p.ok(first)
		p.say(`{"return": "second", "id": %q}`, second.ID)
		p.next()
	}), Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Execute(ctx, "slow", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want a deadline", err)
	}
	var got string
	if err := c.Execute(t.Context(), "next", nil, &got); err != nil || got != "second" {
		t.Errorf("next command: %q, %v", got, err)
	}
}

func TestCommandHasADeadlineEvenWithoutOneInItsContext(t *testing.T) {
	c := dial(t, serve(t, func(p *peer) {
		p.handshake()
		for {
			if _, ok := p.next(); !ok {
				return
			}
		}
	}), Options{Timeout: 50 * time.Millisecond})
	if err := c.Execute(context.Background(), "x", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline", err)
	}
}

func TestAStuckPeerCannotHoldUpAWriter(t *testing.T) {
	block := make(chan struct{})
	c := dial(t, serve(t, func(p *peer) { p.handshake(); <-block }), Options{})
	defer close(block)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	big := strings.Repeat("x", 1<<20)
	if err := c.Execute(ctx, "x", map[string]string{"data": big}, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline", err)
	}
	// Half a command is on the wire, so nothing else may follow it.
	if err := c.Execute(t.Context(), "y", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestLostConnectionFailsCommandsUnderWay(t *testing.T) {
	c := dial(t, serve(t, func(p *peer) { p.handshake(); p.next() }), Options{})
	if err := c.Execute(t.Context(), "quit", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	<-c.Done()
	if err := c.Execute(t.Context(), "again", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	if c.Err() == nil {
		t.Error("no reason for the end")
	}
}

func TestReplyJustBeforeTheEndCounts(t *testing.T) {
	c := dial(t, serve(t, func(p *peer) {
		p.handshake()
		r, _ := p.next()
		p.ok(r)
	}), Options{})
	if err := c.Execute(t.Context(), "quit", nil, nil); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestCloseFailsCommandsUnderWay(t *testing.T) {
	asked := make(chan struct{})
	c := dial(t, serve(t, func(p *peer) {
		p.handshake()
		p.next()
		close(asked)
		p.next()
	}), Options{})
	go func() { <-asked; c.Close() }()
	if err := c.Execute(t.Context(), "x", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestFilesArePassed(t *testing.T) {
	got := make(chan string, 1)
	c := dial(t, serve(t, func(p *peer) {
		p.handshake()
		buf, oob := make([]byte, 4096), make([]byte, 4096)
		n, oobn, _, _, err := p.ReadMsgUnix(buf, oob)
		if err != nil {
			return
		}
		msgs, _ := syscall.ParseSocketControlMessage(oob[:oobn])
		fds, _ := syscall.ParseUnixRights(&msgs[0])
		f := os.NewFile(uintptr(fds[0]), "passed")
		defer f.Close()
		content := make([]byte, 16)
		k, _ := f.ReadAt(content, 0)
		got <- string(content[:k])
		var r request
		_ = json.Unmarshal(buf[:n], &r)
		p.ok(r)
		p.next()
	}), Options{})
	f, err := os.CreateTemp(t.TempDir(), "f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprint(f, "hello")
	if err := c.ExecuteFile(t.Context(), "getfd", map[string]string{"fdname": "x"}, nil, f); err != nil {
		t.Fatal(err)
	}
	if s := <-got; s != "hello" {
		t.Errorf("read %q through the passed descriptor", s)
	}
}

func TestDialFailuresThatMayPass(t *testing.T) {
	for name, c := range map[string]struct {
		script func(*peer)
		retry  bool
	}{
		"connection closed without a greeting": {script: func(*peer) {}, retry: true},
		"connection cut in the greeting":       {script: func(p *peer) { fmt.Fprint(p, `{"QMP": {"ver`) }, retry: true},
		"closed during the handshake":          {script: func(p *peer) { p.say("%s", greeting) }, retry: true},
		"another server":                       {script: func(p *peer) { p.say(`{"hello": 1}`); p.next() }},
		"not JSON":                             {script: func(p *peer) { p.say("SSH-2.0"); p.next() }},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, c.script)
			_, err := Dial(t.Context(), s.path, Options{})
			if err == nil {
				t.Fatal("no error")
			}
			if got := Retryable(err); got != c.retry {
				t.Errorf("retryable %v, want %v: %v", got, c.retry, err)
			}
		})
	}
	_, err := Dial(t.Context(), filepath.Join(t.TempDir(), "none"), Options{})
	if !Retryable(err) {
		t.Errorf("no socket yet: %v, want retryable", err)
	}
}

func TestSilentServerHoldsDialOnlyUntilItsContextEnds(t *testing.T) {
	block := make(chan struct{})
	s := serve(t, func(*peer) { <-block })
	defer close(block)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, s.path, Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline", err)
	}
}

func TestGarbageEndsTheConnection(t *testing.T) {
	for name, line := range map[string]string{
		"not JSON":         "garbage",
		"error without id": `{"error": {"class": "GenericError", "desc": "JSON parse error"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, serve(t, func(p *peer) { p.handshake(); p.next(); p.say("%s", line); p.next() }), Options{})
			if err := c.Execute(t.Context(), "x", nil, nil); !errors.Is(err, ErrClosed) {
				t.Errorf("got %v, want ErrClosed", err)
			}
		})
	}
}
