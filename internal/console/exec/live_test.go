// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

func liveFor(conn net.Conn) *liveConn {
	return &liveConn{Conn: conn, in: bufio.NewReader(conn), window: patience}
}

// wire passes bytes between clients and the server until it is cut, and then none, without a word to either.
type wire struct {
	l     net.Listener
	to    string
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
	wg    sync.WaitGroup
}

func newWire(t *testing.T, to string) *wire {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{l: l, to: to}
	w.wg.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				_ = a.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, a, b)
			w.mu.Unlock()
			w.wg.Go(func() { w.pass(a, b) })
			w.wg.Go(func() { w.pass(b, a) })
		}
	})
	t.Cleanup(w.close)
	return w
}

func (w *wire) pass(from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		w.mu.Lock()
		cut := w.cut
		w.mu.Unlock()
		if cut || err != nil {
			return // neither closed nor read any more
		}
		_, _ = to.Write(buf[:n])
	}
}

func (w *wire) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
}

func (w *wire) close() {
	_ = w.l.Close()
	w.mu.Lock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

// through is the URL by way of the wire.
func (w *wire) through(t testing.TB, target string) string {
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = w.l.Addr().String()
	return u.String()
}

func hostOf(t testing.TB, target string) string {
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func TestAnIdleSessionLives(t *testing.T) {
	for name, dial := range map[string]func(t testing.TB, target string) *client{
		"SPDY":      func(t testing.TB, target string) *client { return dialSPDY(t, "POST", target, "v4.channel.k8s.io") },
		"WebSocket": func(t testing.TB, target string) *client { return attachWS(t, target, "v5.channel.k8s.io") },
	} {
		t.Run(name, func(t *testing.T) {
			const interval = 200 * time.Millisecond
			h := newHub(t)
			s := start(t, Options{Attacher: h, KeepAlive: interval})
			guest := newSerial(t, h)
			c := dial(t, urlOf(t, s))
			c.sees(greeting)
			select {
			case <-c.ended:
				t.Fatal("it was ended")
			case <-time.After(4 * windowIntervals * interval):
			}
			c.types("still here")
			guest.hears("still here")
		})
	}
}

func TestAThousandClientsThatVanishLeaveNothing(t *testing.T) {
	const batch, batches, interval = 50, 20, 100 * time.Millisecond
	h := newHub(t)
	s := start(t, Options{Attacher: h, KeepAlive: interval})
	newSerial(t, h).say("hello\n")
	before := runtime.NumGoroutine()
	for i := range batches {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			w := newWire(t, hostOf(t, urlOf(t, s)))
			var clients []*client
			for j := range batch {
				if j%2 == 0 {
					clients = append(clients, dialSPDY(t, "POST", w.through(t, urlOf(t, s)), "v5.channel.k8s.io"))
				} else {
					clients = append(clients, attachWS(t, w.through(t, urlOf(t, s)), "v5.channel.k8s.io"))
				}
				clients[j].sees(greeting)
			}
			w.stop()
			start := time.Now()
			eventually(t, "all are noticed", func() bool { return h.Stats().Clients == 0 && len(s.room) == 0 })
			if took := time.Since(start); took > windowIntervals*interval+10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
	eventually(t, "goroutines as before", func() bool { return runtime.NumGoroutine() <= before })
}

func TestAClientThatTakesNoOutputIsEndedAndHoldsUpNobody(t *testing.T) {
	h := newHub(t)
	s := start(t, Options{Attacher: h, KeepAlive: 100 * time.Millisecond})
	guest := newSerial(t, h)
	deaf, answer := dialWS(t, urlOf(t, s), "v5.channel.k8s.io")
	if answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(answer.Status)
	}
	_ = deaf.Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	for range 200 {
		guest.say(strings.Repeat("x", 64<<10)) // stalls if anybody does
	}
	eventually(t, "it is ended", func() bool { return h.Stats().Clients == 0 && len(s.room) == 0 })
}

func TestAFloodOfSlowClientsTakesALimitedShareAndPasses(t *testing.T) {
	h := newHub(t)
	s := start(t, Options{Attacher: h})
	newSerial(t, h).say("hello\n")
	address := hostOf(t, urlOf(t, s))
	var flood []net.Conn
	defer func() {
		for _, c := range flood {
			_ = c.Close()
		}
	}()
	for range 3 * (MaxSessions + spareConns) {
		c, err := net.DialTimeout("tcp", address, patience)
		if err != nil {
			t.Fatal(err)
		}
		flood = append(flood, c)
		_, _ = io.WriteString(c, "GET /exec/")
	}
	hungUp := make(chan struct{}, len(flood))
	for _, c := range flood {
		go func() {
			_ = c.SetReadDeadline(time.Now().Add(patience))
			if _, err := io.Copy(io.Discard, c); err == nil || !strings.Contains(err.Error(), "timeout") {
				hungUp <- struct{}{}
			}
		}()
	}
	for range flood { // some at once, the others after headerTime
		select {
		case <-hungUp:
		case <-time.After(patience):
			t.Fatal("slow clients are kept")
		}
	}
	dialSPDY(t, "POST", urlOf(t, s), "v4.channel.k8s.io").sees("hello\n")
}

func TestEndlessHeadersAreCutOff(t *testing.T) {
	s := start(t, Options{Attacher: newHub(t)})
	conn, err := net.Dial("tcp", hostOf(t, urlOf(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /exec/x HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 2*headerBytes)+"\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("answer %s", answer.Status)
	}
}
