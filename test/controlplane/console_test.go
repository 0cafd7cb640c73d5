// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// screen collects what a console shows.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// executors are the ways in which client-go opens a console, by the machine's exec subresource.
func (p *product) executors(t *testing.T) map[string]remotecommand.Executor {
	t.Helper()
	u, err := url.Parse(p.Server() + "/apis/compute.ironcore.dev/v1alpha1/namespaces/" + p.machine.Namespace +
		"/machines/" + p.machine.Name + "/exec")
	if err != nil {
		t.Fatal(err)
	}
	spdy, err := remotecommand.NewSPDYExecutor(p.AdminConfig(), http.MethodPost, u)
	if err != nil {
		t.Fatal(err)
	}
	webSocket, err := remotecommand.NewWebSocketExecutor(p.AdminConfig(), http.MethodGet, u.String())
	if err != nil {
		t.Fatal(err)
	}
	both, err := remotecommand.NewFallbackExecutor(webSocket, spdy, httpstream.IsUpgradeFailure)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]remotecommand.Executor{"SPDY": spdy, "WebSocket": webSocket, "WebSocket, else SPDY": both}
}

// session is somebody at a machine's console.
type session struct {
	keys  *io.PipeWriter
	out   screen
	ended chan error
}

// open opens a console and waits until the guest's prompt is seen. Sessions end with the test at the latest.
func open(t *testing.T, e remotecommand.Executor) *session {
	t.Helper()
	in, keys := io.Pipe()
	s := &session{keys: keys, ended: make(chan error, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	go func() {
		err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: &s.out, Tty: true})
		_ = keys.Close() // so that typing ends, too
		s.ended <- err
	}()
	s.shows(t, login, 0)
	return s
}

// shows waits until something is shown after the first bytes.
func (s *session) shows(t *testing.T, what string, from int) {
	t.Helper()
	eventually(t, "the console shows "+what, func() error {
		select {
		case err := <-s.ended:
			t.Fatalf("the session has ended: %v\n%s", err, s.out.text())
		default:
		}
		if text := s.out.text()[from:]; !strings.Contains(text, what) {
			return fmt.Errorf("it shows %q", text)
		}
		return nil
	})
}

// ask types a command and waits for what it has to print.
func (s *session) ask(t *testing.T, command, want string) {
	t.Helper()
	said := len(s.out.text())
	if _, err := io.WriteString(s.keys, "\n"+command+"\n"); err != nil {
		t.Fatalf("type: %v\n%s", err, s.out.text())
	}
	s.shows(t, want, said)
}

// leave types the escape character.
func (s *session) leave(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(s.keys, "\x1d"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.ended:
		if err != nil {
			t.Errorf("the session ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the escape character does not end the session")
	}
}

// guestShows runs commands in the guest, in a session of their own, until one prints what it has to.
func (p *product) guestShows(t *testing.T, command, want string) {
	t.Helper()
	s := open(t, p.executors(t)["SPDY"])
	s.ask(t, "while ! { "+command+"; } | grep -q '"+want+"'; do sleep 1; done; echo see''n", "seen")
	s.leave(t)
}

// consoles opens a console in each way, through kube-apiserver, ironcore's API server and the poollet.
func (p *product) consoles(t *testing.T) {
	for name, e := range p.executors(t) {
		t.Run(name, func(t *testing.T) {
			s := open(t, e)
			s.ask(t, "uname -s -m", "Linux ")
			s.leave(t)
		})
	}
	t.Run("there is none of a machine that does not exist", func(t *testing.T) {
		other := *p
		other.machine.Name = "other"
		for name, e := range other.executors(t) {
			err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard, Tty: true})
			if err == nil || !strings.Contains(fmt.Sprint(err), "not found") && !strings.Contains(fmt.Sprint(err), "404") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
