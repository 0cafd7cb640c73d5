// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// openTerminal returns both sides of a pseudo terminal.
func openTerminal(t *testing.T) (person, terminal *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this kernel gives no pseudo terminal: %v", err)
	}
	t.Cleanup(func() { person.Close() })
	fd := int(person.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("pseudo terminals are not mounted: %v", err)
	}
	t.Cleanup(func() { terminal.Close() })
	return person, terminal
}

func settings(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(f.Fd()), getTermios)
	if err != nil {
		t.Fatal(err)
	}
	return *s
}

func TestATerminalIsRawMeanwhileAndRestored(t *testing.T) {
	for name, leave := range map[string]func(*served, *os.File, context.CancelFunc){
		"by the escape key": func(_ *served, person *os.File, _ context.CancelFunc) { io.WriteString(person, "\x1d") },
		"by a signal":       func(_ *served, _ *os.File, cancel context.CancelFunc) { cancel() },
		"by the daemon":     func(s *served, _ *os.File, _ context.CancelFunc) { s.end() },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t)
			person, terminal := openTerminal(t)
			if !IsTerminal(terminal) {
				t.Fatal("it is no terminal")
			}
			before := settings(t, terminal)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := s.interactive(ctx, terminal, terminal)
			eventually(t, "the terminal is raw", func() bool { return settings(t, terminal).Lflag&unix.ICANON == 0 })
			io.WriteString(person, "\x03") // ^C goes to the guest, unechoed
			eventually(t, "the guest hears ^C", func() bool { return s.guest.input() == "\x03" })
			s.guest.say("a\r\n")
			got := make([]byte, 3)
			if _, err := io.ReadFull(person, got); err != nil || string(got) != "a\r\n" {
				t.Errorf("the person sees %q, %v", got, err)
			}
			leave(s, person, cancel)
			<-ended
			if d := cmp.Diff(before, settings(t, terminal)); d != "" {
				t.Error(d)
			}
		})
	}
}
