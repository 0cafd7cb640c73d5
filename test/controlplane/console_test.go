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

// converse types a command at the console and leaves it.
func converse(t *testing.T, e remotecommand.Executor) {
	t.Helper()
	in, keys := io.Pipe()
	var out screen
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: &out, Tty: true})
		_ = in.CloseWithError(io.ErrClosedPipe) // so that typing ends, too
		ended <- err
	}()
	shows := func(what string, from int) {
		t.Helper()
		eventually(t, "the console shows "+what, func() error {
			select {
			case err := <-ended:
				t.Fatalf("the session has ended: %v\n%s", err, out.text())
			default:
			}
			if !strings.Contains(out.text()[from:], what) {
				return errNotYet
			}
			return nil
		})
	}
	shows(login, 0)
	typed := func(keyStrokes string) {
		t.Helper()
		if _, err := io.WriteString(keys, keyStrokes); err != nil {
			t.Fatalf("type: %v\n%s", err, out.text())
		}
	}
	said := len(out.text())
	typed("\nuname -s -m\n")
	shows("Linux ", said)
	typed("\x1d") // the escape character of consoles
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the session ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the escape character does not end the session")
	}
}

// consoles opens a console in each way, through kube-apiserver, ironcore's API server and the poollet.
func (p *product) consoles(t *testing.T) {
	for name, e := range p.executors(t) {
		t.Run(name, func(t *testing.T) { converse(t, e) })
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
