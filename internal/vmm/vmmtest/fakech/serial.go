// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// replayLimit is how much output is kept while nobody is attached, in bytes (v53 and later).
const replayLimit = 1 << 20

// serialPort is the host end of the guest's serial line.
type serialPort interface {
	write(b []byte)
	close()
}

// nullPort swallows output (Null, Off).
type nullPort struct{}

func (nullPort) write([]byte) {}
func (nullPort) close()       {}

// filePort writes to a file or to standard output.
type filePort struct{ f *os.File }

func (p filePort) write(b []byte) { _, _ = p.f.Write(b) }
func (filePort) close()           {}

func openSerial(m *machine) serialPort {
	c := m.v.console
	switch m.cfg.Serial.Mode {
	case "Socket":
		return newSocketPort(m, c.serial, deref(m.cfg.Serial.Socket))
	case "Pty":
		return newPTYPort(m, c.pty)
	case "File":
		return filePort{c.file}
	case "Tty":
		return filePort{os.Stdout}
	default:
		return nullPort{}
	}
}

// replayBuffer keeps the newest output nobody has taken yet.
type replayBuffer struct{ b []byte }

func (r *replayBuffer) add(b []byte) {
	r.b = append(r.b, b...)
	if over := len(r.b) - replayLimit; over > 0 {
		r.b = append(r.b[:0:0], r.b[over:]...)
	}
}

// flush gives what it can to write, which returns how much it took.
func (r *replayBuffer) flush(write func([]byte) int) {
	n := write(r.b)
	r.b = r.b[n:]
	if len(r.b) == 0 {
		r.b = nil
	}
}

// socketPort serves one client at a time; a new one kicks the old out.
type socketPort struct {
	ln    *net.UnixListener
	path  string
	input func([]byte)
	keeps bool // buffers without a client

	wg sync.WaitGroup

	mu     sync.Mutex
	conn   *net.UnixConn
	buf    replayBuffer
	closed bool
}

func newSocketPort(m *machine, ln *net.UnixListener, path string) *socketPort {
	p := &socketPort{ln: ln, path: path, input: m.guest.input, keeps: m.v.dialect >= dialect53}
	_ = ln.SetDeadline(time.Time{})
	p.wg.Add(1)
	go p.accept()
	return p
}

func (p *socketPort) accept() {
	defer p.wg.Done()
	for {
		c, err := p.ln.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			continue
		}
		p.attach(c)
	}
}

func (p *socketPort) attach(c *net.UnixConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return
	}
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.conn = c
	// What does not fit into the client's socket stays until the guest prints again.
	p.buf.flush(p.send)
	p.wg.Add(1)
	go p.read(c)
}

func (p *socketPort) read(c *net.UnixConn) {
	defer p.wg.Done()
	buf := make([]byte, 64)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			p.input(typed(buf[:n]))
		}
		if err != nil {
			p.detach(c)
			return
		}
	}
}

// typed is what the guest receives: a line feed on its own arrives as a carriage return.
func typed(b []byte) []byte {
	if len(b) == 1 && b[0] == '\n' {
		return []byte{'\r'}
	}
	return append([]byte(nil), b...)
}

func (p *socketPort) detach(c *net.UnixConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == c {
		p.conn = nil
	}
	_ = c.Close()
}

// send writes without waiting and returns how much the client took.
func (p *socketPort) send(b []byte) int {
	if p.conn == nil || len(b) == 0 {
		return 0
	}
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return 0
	}
	total := 0
	_ = raw.Write(func(fd uintptr) bool {
		for total < len(b) {
			n, err := syscall.Write(int(fd), b[total:])
			if n <= 0 || err != nil {
				break
			}
			total += n
		}
		return true
	})
	return total
}

func (p *socketPort) write(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil && !p.keeps {
		return
	}
	p.buf.add(b)
	p.buf.flush(p.send)
}

// close disconnects the client, removes the socket and leaves the listener to the consoles.
func (p *socketPort) close() {
	p.mu.Lock()
	p.closed = true
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.mu.Unlock()
	_ = p.ln.SetDeadline(time.Unix(1, 0))
	p.wg.Wait()
	_ = os.Remove(p.path)
}
