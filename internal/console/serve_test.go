// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// served is a hub with its local socket.
type served struct {
	*testing.T
	hub    *Hub
	guest  *guest
	socket string
	stop   context.CancelFunc
	ended  chan error
}

func serve(t *testing.T) *served {
	s := &served{T: t, hub: newHub(t, Options{}), guest: newGuest(t).start(), ended: make(chan error, 1)}
	s.guest.open(s.hub, filepath.Join(t.TempDir(), "console.log"))
	s.socket = filepath.Join(socketDir(t), "console.sock")
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.stop = cancel
	go func() { s.ended <- Serve(ctx, l, s.hub, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(s.end)
	return s
}

func (s *served) end() {
	s.stop()
	select {
	case err := <-s.ended:
		s.ended <- err
		if err != nil {
			s.Error(err)
		}
	case <-time.After(patience):
		s.Error("Serve goes on")
	}
}

func (s *served) dial(id string, o AttachOptions) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	conn, err := Dial(ctx, s.socket, id, o)
	if err == nil {
		conn.SetDeadline(time.Now().Add(patience))
		s.Cleanup(func() { conn.Close() })
	}
	return conn, err
}

func (s *served) must(o AttachOptions) net.Conn {
	s.Helper()
	conn, err := s.dial(guestID, o)
	if err != nil {
		s.Fatal(err)
	}
	return conn
}

func (s *served) reads(conn net.Conn, want string) {
	s.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		s.Fatalf("got %q, %v, want %q", got[:n], err, want)
	}
}

func TestALocalClientTalksWithTheGuest(t *testing.T) {
	s := serve(t)
	s.guest.say("login: ")
	eventually(t, "it is read", func() bool { return len(s.hub.Tail(guestID, 9)) > 0 })
	conn := s.must(AttachOptions{})
	s.reads(conn, "login: ")
	io.WriteString(conn, "root\n")
	eventually(t, "the guest hears", func() bool { return s.guest.input() == "root\n" })
	s.guest.say("welcome")
	s.reads(conn, "welcome")
}

func TestWhatIsTypedWithTheRequestReachesTheGuest(t *testing.T) {
	s := serve(t)
	conn := s.raw("ATTACH " + guestID + "\nhello")
	s.reads(conn, "OK\n")
	eventually(t, "the guest hears", func() bool { return s.guest.input() == "hello" })
}

func TestLocalClientsAreRefusedWithKindAndReason(t *testing.T) {
	s := serve(t)
	_, err := s.dial("nobody", AttachOptions{})
	wantKind(t, err, machine.NotFound)
	s.must(AttachOptions{})
	_, err = s.dial(guestID, AttachOptions{})
	wantKind(t, err, machine.FailedPrecondition)
	s.must(AttachOptions{ReadOnly: true})
	s.must(AttachOptions{TakeOver: true})
	s.end()
	_, err = s.dial(guestID, AttachOptions{})
	wantKind(t, err, machine.Unavailable)
}

func (s *served) raw(text string) net.Conn {
	s.Helper()
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	io.WriteString(conn, text)
	return conn
}

func TestGarbageIsAnsweredAndHungUpOn(t *testing.T) {
	s := serve(t)
	for name, text := range map[string]string{
		"another protocol":   "GET / HTTP/1.1\r\n\r\n",
		"an empty line":      "\n",
		"no machine":         "ATTACH\n",
		"an unknown word":    "ATTACH " + guestID + " now\n",
		"binary":             "\x00\xff\x16\x03\n",
		"a line without end": strings.Repeat("x", maxRequest+1),
		"a very long line":   strings.Repeat("ATTACH ", 10000),
	} {
		t.Run(name, func(t *testing.T) {
			conn := s.raw(text)
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "ERR invalid: ") {
				t.Fatalf("%q %v", line, err)
			}
			if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
				t.Error("the connection stays open")
			}
		})
	}
}

func TestVanishedClientsLeaveAtOnce(t *testing.T) {
	s := serve(t)
	for range 3 * MaxClients {
		conn, err := s.dial(guestID, AttachOptions{TakeOver: true})
		if machine.IsKind(err, machine.Exhausted) {
			eventually(t, "there is room again", func() bool { return s.hub.Stats().Clients < MaxClients/2 })
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	eventually(t, "all are gone", func() bool { return s.hub.Stats().Clients == 0 })
}

func TestTooManyClientsAreTurnedAway(t *testing.T) {
	s := serve(t)
	for range MaxClients {
		s.must(AttachOptions{ReadOnly: true})
	}
	_, err := s.dial(guestID, AttachOptions{ReadOnly: true})
	wantKind(t, err, machine.Exhausted)
	s.end()
	eventually(t, "all are gone", func() bool { return s.hub.Stats().Clients == 0 })
}

func TestServeEndsWithClientsThatSayNothing(t *testing.T) {
	s := serve(t)
	conn := s.raw("ATTA")
	s.end()
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Error("the connection stays open")
	}
}

func TestServeReportsABrokenListener(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(socketDir(t), "s"))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := Serve(t.Context(), l, newHub(t, Options{}), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("no error")
	}
}

func TestDialGivesUpWithItsContext(t *testing.T) {
	socket := filepath.Join(socketDir(t), "s")
	l, err := net.Listen("unix", socket) // takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, socket, guestID, AttachOptions{}); err == nil {
		t.Error("no error")
	}
}
