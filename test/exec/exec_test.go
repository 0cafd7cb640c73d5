// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// executor makes a client of client-go for a URL.
type executor func(u *url.URL) (remotecommand.Executor, error)

func executors() map[string]executor {
	webSocket := func(u *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(&rest.Config{}, http.MethodGet, u.String())
	}
	spdy := func(method string) executor {
		return func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(&rest.Config{}, method, u)
		}
	}
	all := map[string]executor{
		"SPDY by POST": spdy(http.MethodPost), "SPDY by GET": spdy(http.MethodGet), "WebSocket": webSocket,
		"WebSocket, else SPDY": func(u *url.URL) (remotecommand.Executor, error) {
			first, err := webSocket(u)
			if err != nil {
				return nil, err
			}
			second, err := spdy(http.MethodPost)(u)
			if err != nil {
				return nil, err
			}
			return remotecommand.NewFallbackExecutor(first, second, httpstream.IsUpgradeFailure)
		},
		"an old WebSocket is refused, then SPDY": func(u *url.URL) (remotecommand.Executor, error) {
			first, err := remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, http.MethodGet, u.String(), "v9.channel.k8s.io")
			if err != nil {
				return nil, err
			}
			second, err := spdy(http.MethodPost)(u)
			if err != nil {
				return nil, err
			}
			return remotecommand.NewFallbackExecutor(first, second, httpstream.IsUpgradeFailure)
		},
		"WebSocket v4": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, http.MethodGet, u.String(), "v4.channel.k8s.io")
		},
	}
	return all
}

// sizes tells the sizes that irictl-machine was seen to tell.
type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

// converse types uname -a, waits for the answer and leaves by the escape character.
func converse(t *testing.T, e remotecommand.Executor) {
	t.Helper()
	in, keys := io.Pipe()
	screen := &logged{}
	resizes := make(sizes, 3)
	resizes <- remotecommand.TerminalSize{Width: 1, Height: 1}
	resizes <- remotecommand.TerminalSize{}
	resizes <- remotecommand.TerminalSize{Width: 80, Height: 25}
	close(resizes)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- e.StreamWithContext(ctx, remotecommand.StreamOptions{
			Stdin: in, Stdout: screen, Tty: true, TerminalSizeQueue: resizes,
		})
	}()
	eventually(t, "the console is there", func() bool {
		return strings.HasPrefix(screen.text(), "Escape character is ^] (Ctrl + ])\r\n") && strings.Contains(screen.text(), "guest: ready login:")
	})
	said := len(screen.text())
	typeKeys(t, keys, "\nuname -a\n")
	eventually(t, "the guest answers", func() bool { return strings.Contains(screen.text()[said:], "Linux ") })
	typeKeys(t, keys, "\x1d")
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the session ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the escape character does not end the session")
	}
	_ = keys.Close()
}

func typeKeys(t *testing.T, keys io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(keys, text); err != nil {
		t.Fatal(err)
	}
}

func TestRealClientsTalkWithARealGuest(t *testing.T) {
	d := start(t)
	for name, make := range executors() {
		for via, way := range map[string]func(*testing.T, string) string{"direct": direct, "through the poollet's kind of proxy": proxied} {
			t.Run("client-go "+name+" "+via, func(t *testing.T) {
				u, err := url.Parse(way(t, d.url(t)))
				if err != nil {
					t.Fatal(err)
				}
				e, err := make(u)
				if err != nil {
					t.Fatal(err)
				}
				converse(t, e)
			})
		}
	}
	t.Run("a used URL is refused", func(t *testing.T) {
		u, _ := url.Parse(d.url(t))
		e, err := executors()["SPDY by POST"](u)
		if err != nil {
			t.Fatal(err)
		}
		converse(t, e)
		err = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard, Tty: true})
		if err == nil || !strings.Contains(err.Error(), "404") && !strings.Contains(err.Error(), "not found") {
			t.Errorf("a second time: %v", err)
		}
	})
	t.Run("irictl-machine exec", func(t *testing.T) { irictl(t, d) })
	t.Run("a flood of connections", func(t *testing.T) { flood(t, d) })
}

func direct(_ *testing.T, target string) string { return target }

// proxied puts a proxy in front that dials anew and passes the upgrade on unchanged.
func proxied(t *testing.T, target string) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &http.Server{Handler: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = u.Scheme, u.Host // Host stays the client's
		},
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- proxy.Serve(l) }()
	t.Cleanup(func() {
		_ = proxy.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	u2 := *u
	u2.Host = l.Addr().String()
	return u2.String()
}

// irictl runs ironcore's own client with a pipe for a keyboard.
func irictl(t *testing.T, d *daemon) {
	binary := build(t, ".", t.TempDir(), "irictl-machine", "github.com/ironcore-dev/ironcore/irictl-machine/cmd/irictl-machine")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "--address", "unix://"+d.socket, "exec", d.machine)
	keys, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	screen := &logged{}
	cmd.Stdout, cmd.Stderr = screen, screen
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	eventually(t, "the console is there", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("it ended with %v:\n%s", err, screen.text())
		default:
		}
		return strings.Contains(screen.text(), "guest: ready login:")
	})
	said := len(screen.text())
	typeKeys(t, keys, "\nuname -a\n")
	eventually(t, "the guest answers", func() bool { return strings.Contains(screen.text()[said:], "Linux ") })
	typeKeys(t, keys, "\x1d")
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v:\n%s", err, screen.text())
	}
}

// flood opens connections that never ask for anything, and expects the IRI socket to answer meanwhile.
func flood(t *testing.T, d *daemon) {
	const connections = 10000
	u, err := url.Parse(d.url(t))
	if err != nil {
		t.Fatal(err)
	}
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	var slowest time.Duration
	for i := range connections {
		c, err := net.DialTimeout("tcp", u.Host, patience)
		if err != nil {
			t.Logf("%d connections, then %v", i, err)
			break
		}
		open = append(open, c)
		_, _ = io.WriteString(c, "POST /exec/")
		if i%100 == 0 {
			began := time.Now()
			if _, err := d.ListMachines(t.Context(), &iri.ListMachinesRequest{}); err != nil {
				t.Fatalf("after %d connections: %v", i, err)
			}
			slowest = max(slowest, time.Since(began))
		}
	}
	if len(open) < 1000 {
		t.Errorf("only %d connections could be made", len(open))
	}
	t.Logf("%d connections; slowest ListMachines %v", len(open), slowest)
	if slowest > 5*time.Second {
		t.Errorf("ListMachines took %v meanwhile", slowest)
	}
}
