// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func TestAMillionLinesAreAllInTheLog(t *testing.T) {
	const lines = 1_000_000
	for name, clients := range map[string]func(*testing.T, *Hub){
		"with nobody attached": func(*testing.T, *Hub) {},
		"with one client":      func(t *testing.T, h *Hub) { attach(t, h, AttachOptions{}).watch() },
		"with clients that sleep": func(t *testing.T, h *Hub) {
			attach(t, h, AttachOptions{})
			attach(t, h, AttachOptions{ReadOnly: true})
		},
		"with clients that vanish": func(t *testing.T, h *Hub) {
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				for {
					select {
					case <-stop:
						return
					default:
					}
					v := attach(t, h, AttachOptions{ReadOnly: true})
					io.ReadFull(v.conn, make([]byte, 10_000))
					v.leave()
				}
			}()
			t.Cleanup(func() { close(stop); <-done })
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "console.log")
			h := newHub(t, Options{LogMaxBytes: 1 << 30})
			g := newGuest(t).start()
			g.open(h, log)
			g.say("0\n")
			clients(t, h)
			var text strings.Builder
			text.WriteString("0\n")
			from := text.Len()
			for i := 1; i <= lines; i++ {
				fmt.Fprintf(&text, "%d\n", i)
			}
			for rest := text.String()[from:]; rest != ""; {
				n := min(len(rest), 100_000)
				g.say(rest[:n])
				rest = rest[n:]
			}
			g.stop()
			logHas(t, log, fmt.Sprintf("\n%d\n", lines))
			if got := content(log); got != text.String() {
				t.Errorf("log has %d bytes and differs from the %d said; %+v", len(got), text.Len(), h.Stats())
			}
		})
	}
}

func TestAClientSeesThePastAndThenThePresentWithoutGap(t *testing.T) {
	log := filepath.Join(t.TempDir(), "console.log")
	h := newHub(t, Options{RingBytes: 1 << 20})
	g := newGuest(t).start()
	g.open(h, log)
	said := make(chan struct{})
	go func() {
		defer close(said)
		for i := range 20_000 {
			g.say(fmt.Sprintf("%07d\n", i))
		}
	}()
	var all []*viewer
	for range 10 {
		before := h.Tail(guestID, 1<<20)
		eventually(t, "the guest goes on", func() bool { return len(h.Tail(guestID, 1<<20)) >= min(len(before)+8000, 150_000) })
		all = append(all, attach(t, h, AttachOptions{ReadOnly: true}).watch())
	}
	<-said
	for _, v := range all {
		v.sees("0019999\n")
		text := v.text()
		for i := 8; i+8 <= len(text); i += 8 {
			var a, b int
			fmt.Sscanf(text[i-8:i+8], "%d\n%d", &a, &b)
			if b != a+1 {
				t.Fatalf("%d is followed by %d", a, b)
			}
		}
	}
	late := attach(t, h, AttachOptions{}).watch()
	late.sees("0019999\n")
	if n := len(late.text()); n != Backlog {
		t.Errorf("a late client sees %d bytes", n)
	}
}

func TestASlowClientIsToldWhatItMissed(t *testing.T) {
	h := newHub(t, Options{RingBytes: MinRingBytes})
	g := newGuest(t).start()
	g.open(h, filepath.Join(t.TempDir(), "console.log"))
	slow, quick := attach(t, h, AttachOptions{ReadOnly: true}), attach(t, h, AttachOptions{ReadOnly: true}).watch()
	for i := range 1000 {
		g.say(fmt.Sprintf("line %04d %s\n", i, strings.Repeat("x", 90)))
	}
	quick.sees("line 0999")
	slow.watch().sees("line 0999")
	if text := slow.text(); !strings.Contains(text, "bytes left out here: this client was too slow") {
		t.Errorf("slow client sees %.500q", text)
	}
}

func TestOneTypesAtATime(t *testing.T) {
	h := newHub(t, Options{})
	g := newGuest(t).start()
	g.open(h, filepath.Join(t.TempDir(), "console.log"))
	g.say("login: ")
	first := attach(t, h, AttachOptions{}).watch()
	_, err := h.join(t.Context(), guestID, AttachOptions{}, nil)
	wantKind(t, err, machine.FailedPrecondition)
	if !strings.Contains(err.Error(), "typed on by another client; take over or attach read-only") {
		t.Error(err)
	}
	first.types("a")
	eventually(t, "the guest hears a", func() bool { return g.input() == "a" })
	second := attach(t, h, AttachOptions{TakeOver: true}).watch()
	first.sees("another client has taken over; you are watching only")
	first.types("IGNORED")
	second.types("b")
	eventually(t, "the guest hears b", func() bool { return g.input() == "ab" })
	g.say("still here")
	first.sees("still here")
	first.leave() // does not end the second's turn
	second.types("c")
	eventually(t, "the guest hears c", func() bool { return g.input() == "abc" })
	second.leave()
	attach(t, h, AttachOptions{}).types("d")
	eventually(t, "the guest hears d", func() bool { return g.input() == "abcd" })
}

func TestAReaderCannotType(t *testing.T) {
	h := newHub(t, Options{})
	g := newGuest(t).start()
	g.open(h, filepath.Join(t.TempDir(), "console.log"))
	g.say("x")
	writer := attach(t, h, AttachOptions{})
	attach(t, h, AttachOptions{ReadOnly: true}).types("NO")
	attach(t, h, AttachOptions{ReadOnly: true, TakeOver: true}).types("NO")
	writer.types("yes")
	eventually(t, "the guest hears", func() bool { return strings.Contains(g.input(), "yes") })
	if g.input() != "yes" {
		t.Errorf("the guest hears %q", g.input())
	}
}

func TestAttachEndsWithItsContext(t *testing.T) {
	h := newHub(t, Options{})
	g := newGuest(t).start()
	g.open(h, filepath.Join(t.TempDir(), "console.log"))
	ctx, cancel := context.WithCancel(t.Context())
	ours, theirs := net.Pipe() // never read from: the output side is stuck in Write
	defer ours.Close()
	ended := make(chan error, 1)
	go func() { ended <- h.Attach(ctx, guestID, AttachOptions{}, theirs) }()
	g.say("nobody reads this")
	eventually(t, "it is attached", func() bool { return h.Stats().Clients == 1 })
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("Attach goes on")
	}
	eventually(t, "it is gone", func() bool { return h.Stats().Clients == 0 })
}

func TestASleepingClientDoesNotKeepAClosedMachine(t *testing.T) {
	h := newHub(t, Options{})
	g := newGuest(t).start()
	g.open(h, filepath.Join(t.TempDir(), "console.log"))
	v := attach(t, h, AttachOptions{})
	g.say("nobody reads this")
	h.CloseMachine(guestID)
	select {
	case err := <-v.ended:
		v.ended <- err
	case <-time.After(patience):
		t.Fatal("Attach goes on")
	}
}

func TestAGuestThatTakesNoInputHoldsUpOnlyTheTypist(t *testing.T) {
	vmm, ours := net.Pipe() // has no buffer, and nobody reads the other end
	defer vmm.Close()
	used := false
	h := newHub(t, Options{Dial: func(context.Context, string) (net.Conn, error) {
		if used {
			return nil, io.EOF
		}
		used = true
		return ours, nil
	}})
	if err := h.Open(guestID, Endpoint{Socket: "s"}, filepath.Join(t.TempDir(), "console.log")); err != nil {
		t.Fatal(err)
	}
	io.WriteString(vmm, "on")
	v, w := attach(t, h, AttachOptions{}).watch(), attach(t, h, AttachOptions{ReadOnly: true}).watch()
	v.sees("on")
	v.types("hello")
	io.WriteString(vmm, " and on")
	w.sees("on and on")
	v.sees("the guest takes no input; 5 bytes dropped")
}
