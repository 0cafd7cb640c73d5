// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"io"
	"strings"
	"testing"
	"time"
)

// BenchmarkAttach is from the request to the first line on the screen. Promised: at most 20 ms.
func BenchmarkAttach(b *testing.B) {
	for name, dial := range map[string]func(t testing.TB, target string) *client{
		"SPDY":      func(t testing.TB, target string) *client { return dialSPDY(t, "POST", target, "v4.channel.k8s.io") },
		"WebSocket": func(t testing.TB, target string) *client { return attachWS(t, target, "v5.channel.k8s.io") },
	} {
		b.Run(name, func(b *testing.B) {
			h := newHub(b)
			s := start(b, Options{Attacher: h})
			newSerial(b, h).say("login: ")
			for b.Loop() {
				c := dial(b, urlOf(b, s))
				c.sees("login: ")
				b.StopTimer()
				_ = c.hangUp()
				<-c.ended
				eventually(b, "room again", func() bool { return len(s.room) == 0 })
				b.StartTimer()
			}
			if took := b.Elapsed() / time.Duration(b.N); took > 20*time.Millisecond {
				b.Errorf("attaching takes %v, promised are 20 ms", took)
			}
		})
	}
}

// BenchmarkRelay is from the VMM's serial socket to a client's screen. Promised: at least 50 MB/s. What a client lost
// because it was too slow does not count.
func BenchmarkRelay(b *testing.B) {
	chunk := strings.Repeat("the guest says a lot and somebody watches all of it \r\n", 1200)
	b.Run("SPDY", func(b *testing.B) {
		h := newHub(b)
		s := start(b, Options{Attacher: h})
		guest := newSerial(b, h)
		session, streams := openSPDY(b, "POST", urlOf(b, s), []string{"v4.channel.k8s.io"},
			streamError, streamStdin, streamStdout, streamResize)
		relay(b, guest, chunk, func(buf []byte) (int, error) { return streams[streamStdout].Read(buf) }, session.Close)
	})
	b.Run("WebSocket", func(b *testing.B) {
		h := newHub(b)
		s := start(b, Options{Attacher: h})
		guest := newSerial(b, h)
		ws, _ := dialWS(b, urlOf(b, s), "v5.channel.k8s.io")
		relay(b, guest, chunk, func([]byte) (int, error) {
			_, p, err := ws.receive()
			return len(p), err
		}, ws.Close)
	})
}

func relay(b *testing.B, guest *serial, chunk string, read func([]byte) (int, error), hangUp func() error) {
	stop, said := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(said)
		conn := <-guest.conn
		guest.conn <- conn
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := io.WriteString(conn, chunk); err != nil {
					return
				}
			}
		}
	}()
	buf := make([]byte, 64<<10)
	const unit = 1 << 20
	b.SetBytes(unit)
	for b.Loop() {
		for n := 0; n < unit; {
			m, err := read(buf)
			if err != nil {
				b.Fatal(err)
			}
			n += m
		}
	}
	if rate := float64(b.N) * unit / 1e6 / b.Elapsed().Seconds(); rate < 50 {
		b.Errorf("%.0f MB/s are passed on, promised are 50", rate)
	}
	close(stop)
	<-said
	_ = hangUp()
}
