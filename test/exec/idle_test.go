// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
)

// idleLimit is how long the proxy of the test lets a connection be silent: the default of common load balancers.
const idleLimit = time.Minute

// idleTime is how long sessions are left alone. The variable is 1 for an hour, or a duration for a trial.
func idleTime(t *testing.T) time.Duration {
	t.Helper()
	switch value := os.Getenv("CHP_IDLE_HOUR"); value {
	case "":
		t.Skip("takes more than an hour: CHP_IDLE_HOUR=1 runs it, with -timeout 90m")
		return 0
	case "1":
		return time.Hour
	default:
		d, err := time.ParseDuration(value)
		if err != nil {
			t.Fatalf("CHP_IDLE_HOUR: %v", err)
		}
		return d
	}
}

// watched is a screen that knows when something was last shown on it.
type watched struct {
	logged
	mu   sync.Mutex
	last time.Time
	idle time.Duration // the longest time without output
}

func (w *watched) Write(p []byte) (int, error) {
	w.look()
	return w.logged.Write(p)
}

func (w *watched) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); w.last.IsZero() {
		w.last = now
	} else {
		w.idle, w.last = max(w.idle, now.Sub(w.last)), now
	}
}

// silence is the longest time without output so far.
func (w *watched) silence() time.Duration {
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.idle
}

// session is somebody at a machine's console.
type session struct {
	keys   io.WriteCloser
	screen *watched
	ended  chan error
}

func (s *session) alive(t *testing.T) {
	t.Helper()
	select {
	case err := <-s.ended:
		t.Fatalf("the session has ended with %v:\n%s", err, s.screen.text())
	default:
	}
}

// answered types a command and waits for what it prints.
func (s *session) answered(t *testing.T) {
	t.Helper()
	said := len(s.screen.text())
	typeKeys(t, s.keys, "\nuname -a\n")
	eventually(t, "the guest answers", func() bool {
		s.alive(t)
		return strings.Contains(s.screen.text()[said:], "Linux ")
	})
}

// leave types the escape character.
func (s *session) leave(t *testing.T) {
	t.Helper()
	typeKeys(t, s.keys, "\x1d")
	select {
	case err := <-s.ended:
		if err != nil {
			t.Errorf("the session ended with %v", err)
		}
	case <-time.After(patience):
		t.Error("the escape character does not end the session")
	}
}

// remote opens a console through a proxy that cuts silent connections.
func remote(t *testing.T, d *daemon, open executor) *session {
	t.Helper()
	u, err := url.Parse(d.url(t))
	if err != nil {
		t.Fatal(err)
	}
	u.Host = impatient(t, u.Host)
	e, err := open(u)
	if err != nil {
		t.Fatal(err)
	}
	in, keys := io.Pipe()
	s := &session{keys: keys, screen: &watched{}, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() {
		s.ended <- e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: s.screen, Tty: true})
	}()
	return s
}

// local runs the daemon's own console command.
func local(t *testing.T, d *daemon) *session {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), d.binary, "console", "--config", d.config, d.machine)
	keys, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &session{keys: keys, screen: &watched{}, ended: make(chan error, 1)}
	cmd.Stdout, cmd.Stderr = s.screen, s.screen
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.ended <- cmd.Wait() }()
	return s
}

// impatient relays connections to a server and cuts those on which nothing came from either side for idleLimit. It
// returns its address.
func impatient(t *testing.T, server string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var relays sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		relays.Wait()
	})
	relays.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			relays.Go(func() { relay(t.Context(), client, server) })
		}
	})
	return l.Addr().String()
}

func relay(ctx context.Context, client net.Conn, server string) {
	var d net.Dialer
	upstream, err := d.DialContext(ctx, "tcp", server)
	if err != nil {
		_ = client.Close()
		return
	}
	cut := func() { _, _ = client.Close(), upstream.Close() }
	defer context.AfterFunc(ctx, cut)()
	idle := time.AfterFunc(idleLimit, cut)
	defer idle.Stop()
	var ways sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{client: upstream, upstream: client} {
		ways.Go(func() {
			defer cut()
			_, _ = io.Copy(to, io.TeeReader(from, touch(func() { idle.Reset(idleLimit) })))
		})
	}
	ways.Wait()
}

// touch is a writer that only notices.
type touch func()

func (f touch) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}

// Sessions that say nothing for an hour are alive after it, although a proxy between cuts what is silent for a minute.
func TestAnIdleSessionLivesForAnHour(t *testing.T) {
	idle := idleTime(t)
	d := start(t)
	sessions := map[string]*session{
		"client-go by SPDY":      remote(t, d, executors()["SPDY by POST"]),
		"client-go by WebSocket": remote(t, d.another(t), executors()["WebSocket"]),
		"the console command":    local(t, d.another(t)),
	}
	for name, s := range sessions {
		eventually(t, name+" sees the guest", func() bool {
			s.alive(t)
			return strings.Contains(s.screen.text(), "guest: ready login:")
		})
		s.answered(t)
	}
	plain := silent(t)
	began := time.Now()
	for time.Since(began) < idle {
		time.Sleep(min(10*time.Second, idle-time.Since(began)))
		for name, s := range sessions {
			select {
			case err := <-s.ended:
				t.Fatalf("%s ended after %v with %v", name, time.Since(began).Round(time.Second), err)
			default:
			}
		}
	}
	select {
	case <-plain:
	case <-time.After(patience):
		t.Error("the proxy cuts nothing, so it proves nothing")
	}
	for name, s := range sessions {
		if quiet := s.screen.silence(); quiet < idle/2 {
			t.Errorf("%s: the guest was never silent for longer than %v", name, quiet)
		} else {
			t.Logf("%s: silent for %v, now %v old", name, quiet.Round(time.Second), time.Since(began).Round(time.Second))
		}
		s.answered(t)
		s.leave(t)
	}
}

// silent opens a connection that is not kept alive. The channel is closed when it is cut.
func silent(t *testing.T) <-chan struct{} {
	t.Helper()
	mute := &http.Server{} // reads and waits
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- mute.Serve(l) }()
	t.Cleanup(func() {
		_ = mute.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	conn, err := net.Dial("tcp", impatient(t, l.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		_, _ = conn.Read(make([]byte, 1))
	}()
	return cut
}
