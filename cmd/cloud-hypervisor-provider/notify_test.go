// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"
)

// serveHealth answers on a socket as the IRI does when it is asked how it is.
func serveHealth(t *testing.T, address string) string {
	t.Helper()
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	healthapi.RegisterHealthServer(server, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return address
}

func TestTheServiceManagerIsToldByItsSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "chpn") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", socket.LocalAddr().String())
	t.Setenv("WATCHDOG_USEC", "400000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	m, err := newManager(serveHealth(t, filepath.Join(dir, "iri.sock")), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	m.ready()
	go func() { ended <- m.run(ctx) }()
	buf := make([]byte, 256)
	hear := func() string {
		_ = socket.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := socket.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
	for _, want := range []string{"READY=1", "WATCHDOG=1", "WATCHDOG=1"} {
		if got := hear(); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	m.stopping()
	for got := hear(); got != "STOPPING=1"; got = hear() {
		if got != "WATCHDOG=1" {
			t.Errorf("told %q", got)
		}
	}
}

func TestAWatchdogIsFedOnlyWhileTheDaemonAnswers(t *testing.T) {
	var answers atomic.Bool
	asked, told := make(chan struct{}), make(chan string)
	m := &manager{
		log: slog.New(slog.DiscardHandler), watchdog: 4 * time.Millisecond,
		answers: func(context.Context) bool { asked <- struct{}{}; return answers.Load() },
		tell:    func(state string) (bool, error) { told <- state; return true, nil },
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.run(ctx) }()
	for range 3 {
		<-asked // telling anything would block here
	}
	answers.Store(true)
	for state := ""; state == ""; {
		select {
		case <-asked:
		case state = <-told:
			if !strings.HasPrefix(state, "WATCHDOG=1") {
				t.Errorf("told %q", state)
			}
		}
	}
	cancel()
	for {
		select {
		case <-asked:
		case <-told:
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return
		}
	}
}

func TestWithoutAServiceManagerNothingIsTold(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	m, err := newManager("/nonexistent.sock", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	m.ready()
	if err := m.run(t.Context()); err != nil {
		t.Error(err)
	}
}
