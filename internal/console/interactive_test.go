// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// session runs Interactive with pipes in place of a terminal.
type session struct {
	*testing.T
	keys, screen *os.File
	ended        chan error
}

func (s *served) interactive(ctx context.Context, stdin, stdout *os.File) chan error {
	conn := s.must(AttachOptions{TakeOver: true})
	conn.SetDeadline(time.Time{})
	ended := make(chan error, 1)
	go func() { ended <- Interactive(ctx, conn, stdin, stdout) }()
	return ended
}

func (s *served) piped(ctx context.Context) *session {
	inReader, inWriter, err := os.Pipe()
	if err != nil {
		s.Fatal(err)
	}
	outReader, outWriter, err := os.Pipe()
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		for _, f := range []*os.File{inReader, inWriter, outReader, outWriter} {
			f.Close()
		}
	})
	return &session{s.T, inWriter, outReader, s.interactive(ctx, inReader, outWriter)}
}

func (s *session) sees(want string) {
	s.Helper()
	s.screen.SetReadDeadline(time.Now().Add(patience))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(s.screen, got); err != nil || string(got) != want {
		s.Fatalf("got %q, %v, want %q", got, err, want)
	}
}

func ends(t *testing.T, ended <-chan error, want error) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, want) {
			t.Errorf("ended with %v, want %v", err, want)
		}
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
}

func TestTheEscapeKeyLeaves(t *testing.T) {
	s := serve(t)
	p := s.piped(t.Context())
	s.guest.say("login: ")
	p.sees("login: ")
	io.WriteString(p.keys, "ro")
	eventually(t, "the guest hears", func() bool { return s.guest.input() == "ro" })
	io.WriteString(p.keys, "ot\x1dnot this")
	ends(t, p.ended, nil)
	eventually(t, "the guest hears", func() bool { return s.guest.input() == "root" })
	eventually(t, "it is detached", func() bool { return s.hub.Stats().Clients == 0 })
}

func TestTheEndOfInputLeavesTheOutputOn(t *testing.T) {
	s := serve(t)
	p := s.piped(t.Context())
	io.WriteString(p.keys, "date\n")
	p.keys.Close()
	eventually(t, "the guest hears", func() bool { return s.guest.input() == "date\n" })
	s.guest.say("Monday")
	p.sees("Monday")
	s.hub.CloseMachine(guestID)
	p.sees(marker("the console is closed"))
	ends(t, p.ended, nil)
}

func TestInteractiveEndsWithItsContext(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	p := s.piped(ctx)
	s.guest.say("x")
	p.sees("x")
	cancel()
	ends(t, p.ended, context.Canceled)
}

func TestInteractiveEndsWithTheDaemon(t *testing.T) {
	s := serve(t)
	p := s.piped(t.Context())
	s.guest.say("x")
	p.sees("x")
	s.end()
	ends(t, p.ended, nil)
}

func TestAPipeIsNoTerminal(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if IsTerminal(r) || IsTerminal(w) {
		t.Error("it is said to be one")
	}
	file, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if IsTerminal(file) {
		t.Error("a file is said to be one")
	}
}

func TestAFileCanBeTyped(t *testing.T) {
	s := serve(t)
	path := t.TempDir() + "/keys"
	text := strings.Repeat("all work and no play\n", 1000)
	if err := os.WriteFile(path, []byte(text+"\x1d"), 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(t.TempDir() + "/screen")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ends(t, s.interactive(t.Context(), in, out), nil)
	eventually(t, "the guest hears it all", func() bool { return s.guest.input() == text })
}
