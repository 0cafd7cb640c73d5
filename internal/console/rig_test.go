// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 60 * time.Second
	guestID  = "4f0c0e7e-7c0f-4d7e-9d0c-1c1f6b1f3a55"
)

// guest is a VMM's serial socket: one client at a time, and what nobody listens to waits.
type guest struct {
	*testing.T
	path string

	mu    sync.Mutex
	l     net.Listener
	conn  net.Conn
	came  chan struct{} // closed when a client came
	heard bytes.Buffer
	wg    sync.WaitGroup
}

func newGuest(t *testing.T) *guest {
	g := &guest{T: t, path: filepath.Join(socketDir(t), "serial.sock")}
	t.Cleanup(g.stop)
	return g
}

// socketDir is short enough for a socket's name.
func socketDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "con")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (g *guest) start() *guest {
	l, err := net.Listen("unix", g.path)
	if err != nil {
		g.Fatal(err)
	}
	g.mu.Lock()
	g.l, g.came = l, make(chan struct{})
	came := g.came
	g.mu.Unlock()
	g.wg.Go(func() {
		for first := true; ; first = false {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			g.mu.Lock()
			if g.conn != nil {
				g.conn.Close()
			}
			if g.l != l { // stopped meanwhile
				conn.Close()
				g.mu.Unlock()
				return
			}
			g.conn = conn
			g.mu.Unlock()
			if first {
				close(came)
			}
			g.wg.Go(func() { io.Copy(hearing{g}, conn) })
		}
	})
	return g
}

type hearing struct{ g *guest }

func (h hearing) Write(p []byte) (int, error) {
	h.g.mu.Lock()
	defer h.g.mu.Unlock()
	return h.g.heard.Write(p)
}

// stop takes the socket away, as a reboot does.
func (g *guest) stop() {
	g.mu.Lock()
	if g.l != nil {
		g.l.Close()
	}
	if g.conn != nil {
		g.conn.Close()
	}
	g.l, g.conn = nil, nil
	g.mu.Unlock()
	g.wg.Wait()
}

// say prints on the console, as soon as somebody is connected.
func (g *guest) say(text string) {
	g.Helper()
	g.mu.Lock()
	came := g.came
	g.mu.Unlock()
	select {
	case <-came:
	case <-time.After(patience):
		g.Fatal("nobody connected to the console")
	}
	g.mu.Lock()
	conn := g.conn
	g.mu.Unlock()
	conn.SetWriteDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, text); err != nil {
		g.Fatalf("the guest is stalled: %v", err)
	}
}

func (g *guest) input() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.heard.String()
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func newHub(t *testing.T, o Options) *Hub {
	t.Helper()
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func (g *guest) open(h *Hub, log string) {
	g.Helper()
	if err := h.Open(guestID, Endpoint{Socket: g.path, ReplaysBacklog: true}, log); err != nil {
		g.Fatal(err)
	}
}

func content(path string) string {
	raw, _ := os.ReadFile(path)
	return string(raw)
}

func logHas(t *testing.T, path, text string) {
	t.Helper()
	eventually(t, "the log has "+text, func() bool { return strings.Contains(content(path), text) })
}

// viewer is an attached client in this process.
type viewer struct {
	*testing.T
	conn  net.Conn
	ended chan error

	mu   sync.Mutex
	seen bytes.Buffer
}

// attach returns once the client is attached.
func attach(t *testing.T, h *Hub, o AttachOptions) *viewer {
	t.Helper()
	ours, theirs := net.Pipe()
	v := &viewer{T: t, conn: ours, ended: make(chan error, 1)}
	c, err := h.join(context.Background(), guestID, o, theirs)
	if err != nil {
		t.Fatal(err)
	}
	go func() { v.ended <- c.run(context.Background()) }()
	t.Cleanup(v.leave)
	return v
}

// watch reads all that comes.
func (v *viewer) watch() *viewer {
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(v, v.conn)
	}()
	v.Cleanup(func() { v.conn.Close(); <-done })
	return v
}

func (v *viewer) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seen.Write(p)
}

func (v *viewer) text() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seen.String()
}

func (v *viewer) sees(text string) {
	v.Helper()
	eventually(v.T, "the client sees "+text, func() bool { return strings.Contains(v.text(), text) })
}

func (v *viewer) types(text string) {
	v.Helper()
	v.conn.SetWriteDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(v.conn, text); err != nil {
		v.Fatal(err)
	}
}

func (v *viewer) leave() {
	v.conn.Close()
	select {
	case err := <-v.ended:
		v.ended <- err
	case <-time.After(patience):
		v.Error("the client left and Attach did not return")
	}
}

func wantKind(t *testing.T, err error, want machine.Kind) {
	t.Helper()
	if err == nil || machine.KindOf(err) != want {
		t.Fatalf("got error %v (%v), want one of kind %v", err, machine.KindOf(err), want)
	}
}

var errDisk = errors.New("no space left on device")

// disk is a file system that can fill up and get stuck.
type disk struct {
	mu    sync.Mutex
	full  bool
	stuck chan struct{}
}

func (d *disk) set(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

func (d *disk) open(path string) (sink, error) {
	s, err := openSink(path)
	return diskFile{s, d}, err
}

type diskFile struct {
	sink
	d *disk
}

func (f diskFile) Write(p []byte) (int, error) {
	if f.d.stuck != nil {
		<-f.d.stuck
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.full {
		n, _ := f.sink.Write(p[:len(p)/2]) // as far as it goes
		return n, errDisk
	}
	return f.sink.Write(p)
}
