// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
)

// maxConnections is how many clients the server serves; the next one gets 503 and a close.
const maxConnections = 10

const serverFull = "HTTP/1.1 503\r\nServer: Firecracker API\r\nConnection: close\r\nContent-Length: 40\r\n\r\n" +
	`{ "error": "Too many open connections" }`

// response is an answer. A nil body on 200 is an empty one; 204 has none at all.
type response struct {
	status int
	body   []byte
}

// outcome is what a handler wants done with the connection besides answering.
type outcome struct {
	resp response
	drop bool // close without an answer
}

// apiServer is the HTTP server. All connections share one thread: while it waits for the VMM no other
// request is answered and no connection accepted. The mutex stands for that thread.
type apiServer struct {
	ln     *net.UnixListener
	limit  int
	handle func(*request) outcome
	// resets reports whether a call of the endpoint is to be answered by a connection reset.
	resets func(path string) bool

	thread sync.Mutex

	mu     sync.Mutex
	conns  map[*net.UnixConn]struct{}
	closed bool
}

func (s *apiServer) serve() {
	for {
		c, err := s.ln.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		s.thread.Lock()
		ok := s.admit(c)
		s.thread.Unlock()
		if ok {
			go s.connection(c)
		}
	}
}

func (s *apiServer) admit(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return false
	}
	if len(s.conns) >= maxConnections {
		_, _ = io.WriteString(c, serverFull)
		_ = c.Close()
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *apiServer) forget(c *net.UnixConn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	_ = c.Close()
}

// close waits for the request in progress, then drops all connections.
func (s *apiServer) close() {
	s.thread.Lock()
	defer s.thread.Unlock()
	_ = s.ln.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
}

func (s *apiServer) connection(c *net.UnixConn) {
	defer s.forget(c)
	p := &parser{limit: s.limit}
	defer p.reset()
	buf := make([]byte, lineLimit)
	for {
		if s.peekReset(c, buf) {
			return
		}
		n, fds, err := recvFDs(c, buf)
		p.pending = append(p.pending, fds...)
		if err != nil || n == 0 {
			return
		}
		if !s.answer(c, p, buf[:n]) {
			return
		}
	}
}

// answer handles what one read brought and reports whether the connection goes on.
func (s *apiServer) answer(c *net.UnixConn, p *parser, data []byte) bool {
	reqs, proceed, err := p.feed(data)
	var perr parseError
	if errors.As(err, &perr) {
		return writeParseError(c, perr) == nil
	}
	for range proceed {
		if _, err := io.WriteString(c, "HTTP/1.1 100 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n"); err != nil {
			return false
		}
	}
	for _, r := range reqs {
		if !s.one(c, r) {
			return false
		}
	}
	return true
}

func (s *apiServer) one(c *net.UnixConn, r *request) bool {
	s.thread.Lock()
	defer s.thread.Unlock()
	// The handler keeps copies of what it wants; the received descriptors end with the request.
	defer closeFDs(r.fds)
	// A client that closed its writing side is hung up on, asked or answered.
	if hungUp(c) {
		return false
	}
	out := s.handle(r)
	if out.drop || hungUp(c) {
		return false
	}
	_, err := c.Write(out.resp.bytes())
	return err == nil
}

// peekReset closes the connection with the request unread, which the client sees as a reset.
func (s *apiServer) peekReset(c *net.UnixConn, buf []byte) bool {
	if s.resets == nil {
		return false
	}
	n := peekBytes(c, buf)
	line, _, ok := bytes.Cut(buf[:n], []byte("\r\n"))
	if !ok {
		return false
	}
	fields := bytes.Fields(line)
	return len(fields) == 3 && s.resets((&request{uri: string(fields[1])}).path())
}

func (r response) bytes() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d \r\nServer: Cloud Hypervisor API\r\nConnection: keep-alive\r\n", r.status)
	if r.status != 204 {
		fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(r.body))
	}
	b.WriteString("\r\n")
	b.Write(r.body)
	return b.Bytes()
}

func writeParseError(c io.Writer, e parseError) error {
	body := fmt.Sprintf("{ \"error\": \"%s\nAll previous unanswered requests will be dropped.\" }", string(e))
	_, err := fmt.Fprintf(c, "HTTP/1.1 400 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	return err
}

// recvFDs reads once, descriptors included.
func recvFDs(c *net.UnixConn, buf []byte) (int, []int, error) {
	oob := make([]byte, syscall.CmsgSpace(253*4))
	n, oobn, _, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return 0, nil, err
	}
	msgs, err := syscall.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return n, nil, err
	}
	var fds []int
	for i := range msgs {
		got, err := syscall.ParseUnixRights(&msgs[i])
		if err != nil {
			return n, fds, err
		}
		fds = append(fds, got...)
	}
	return n, fds, nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}
