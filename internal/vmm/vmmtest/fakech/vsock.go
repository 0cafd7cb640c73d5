// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
)

// connectLimit is the longest CONNECT command, line feed included, in bytes.
const connectLimit = 32

// vsockDevice is the host side of the hybrid vsock: "CONNECT <port>" on a Unix socket leads to a
// listener in the guest.
type vsockDevice struct {
	m    *machine
	ln   *net.UnixListener
	path string
	wg   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	port  uint32
	ended bool
}

func (m *machine) makeVsock(c *VsockConfig) (*node, *chainError) {
	id := m.name(&c.PciDeviceCommonConfig, "_vsock")
	ln, err := listenUnix(c.Socket)
	if err != nil {
		return nil, failed("Cannot create virtio-vsock backend",
			"Error binding to the host-side Unix socket", osText(err))
	}
	d := &vsockDevice{m: m, ln: ln, path: c.Socket, conns: map[net.Conn]struct{}{}}
	d.wg.Add(1)
	go d.accept()
	return m.insert(id, "vsock", d), nil
}

func (d *vsockDevice) accept() {
	defer d.wg.Done()
	for {
		c, err := d.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && d.keep(c) {
			go d.serve(c)
		}
	}
}

func (d *vsockDevice) keep(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		_ = c.Close()
		return false
	}
	d.conns[c] = struct{}{}
	d.wg.Add(1)
	return true
}

// Close drops all connections and removes the socket.
func (d *vsockDevice) Close() error {
	_ = d.ln.Close()
	d.mu.Lock()
	d.ended = true
	for c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
	return os.Remove(d.path)
}

func (d *vsockDevice) serve(c net.Conn) {
	defer d.wg.Done()
	defer func() {
		d.mu.Lock()
		delete(d.conns, c)
		d.mu.Unlock()
		_ = c.Close()
	}()
	// Until the guest's driver is up, nothing is answered.
	up := d.m.guest.up
	if d.m.v.script.NoVsock {
		up = nil
	}
	select {
	case <-up:
	case <-d.m.guest.gone:
		return
	}
	r := bufio.NewReader(c)
	port, err := readConnect(r)
	if err != nil {
		return
	}
	switch port {
	case 0:
		return
	case d.m.v.script.QGAPort:
		d.accepted(c)
		newAgent(d.m).serve(r, c)
	case d.m.v.script.EchoPort:
		d.accepted(c)
		_, _ = io.Copy(c, r)
	}
}

// accepted answers with the host-side port, which counts up from 2^30 + 1.
func (d *vsockDevice) accepted(c net.Conn) {
	d.mu.Lock()
	d.port++
	port := d.port | 1<<30
	d.mu.Unlock()
	_, _ = fmt.Fprintf(c, "OK %d\n", port)
}

func readConnect(r *bufio.Reader) (uint32, error) {
	var line []byte
	for len(line) < connectLimit {
		b, err := r.ReadByte()
		if err != nil {
			return 0, err
		}
		if b == '\n' {
			words := strings.Fields(string(line))
			if len(words) != 2 || !strings.EqualFold(words[0], "connect") {
				return 0, errors.New("no CONNECT command")
			}
			port, err := strconv.ParseUint(words[1], 10, 32)
			return uint32(port), err
		}
		line = append(line, b)
	}
	return 0, errors.New("command too long")
}
