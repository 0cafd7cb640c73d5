// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/streaming/pkg/httpstream"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

const success = `{"metadata":{},"status":"Success"}`

// dialect is a way to reach a console.
type dialect struct {
	dial    func(t testing.TB, target string) *client
	version int
}

func dialects() map[string]dialect {
	all := map[string]dialect{}
	for protocol, version := range spdyVersions {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			all[fmt.Sprintf("SPDY %s %s", method, protocol)] = dialect{func(t testing.TB, target string) *client {
				return dialSPDY(t, method, target, protocol)
			}, version}
		}
	}
	for _, p := range wsProtocols {
		all["WebSocket "+p.name] = dialect{func(t testing.TB, target string) *client {
			return attachWS(t, target, p.name)
		}, p.version}
	}
	return all
}

func TestEveryClientTalksWithTheGuestUntilTheEscapeCharacter(t *testing.T) {
	for name, d := range dialects() {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			s := start(t, Options{Attacher: h})
			guest := newSerial(t, h)
			guest.say("said before\n")
			eventually(t, "the hub has it", func() bool { return len(h.Tail(guestID, 100)) > 0 })
			c := d.dial(t, urlOf(t, s))
			c.sees("said before\n")
			if !strings.HasPrefix(c.text(), greeting+"said before\n") {
				t.Errorf("sees %q", c.text())
			}
			c.types("uname -a\n")
			guest.hears("uname -a\n")
			guest.say("Linux\n")
			c.sees("Linux\n")
			c.types("last words\x1d never sent")
			want := ""
			if d.version >= 4 {
				want = success
			}
			c.endsWith(want)
			guest.hears("last words")
			if strings.Contains(guest.heard.String(), "never") {
				t.Error("what came after the escape character was sent")
			}
			eventually(t, "the hub is left", func() bool { return h.Stats().Clients == 0 })
		})
	}
}

func TestAFailureIsToldInTheFormOfTheProtocol(t *testing.T) {
	failure := machine.Errorf(machine.NotFound, "machine x has no open console")
	for name, d := range dialects() {
		t.Run(name, func(t *testing.T) {
			s := start(t, Options{Attacher: attacher(func(context.Context, console.AttachOptions, io.ReadWriteCloser) error {
				return failure
			})})
			c := d.dial(t, urlOf(t, s))
			want := "machine x has no open console"
			if d.version >= 4 {
				want = `{"metadata":{},"status":"Failure","message":"machine x has no open console","reason":"NotFound","code":404}`
			}
			c.endsWith(want)
		})
	}
}

// A daemon that was just restarted has yet to take up its guests.
func TestAClientOfARunningMachineWaitsForItsConsole(t *testing.T) {
	for name, d := range dialects() {
		t.Run(name, func(t *testing.T) {
			asked := make(chan struct{})
			once := sync.OnceFunc(func() { close(asked) })
			h, err := console.New(console.Options{Expected: func(string) bool { once(); return true }})
			if err != nil {
				t.Fatal(err)
			}
			s := start(t, Options{Attacher: h})
			c := d.dial(t, urlOf(t, s))
			c.types("typed early\n")
			select {
			case <-asked:
			case <-time.After(patience):
				t.Fatal("nobody asks whether the machine runs")
			}
			guest := newSerial(t, h)
			guest.hears("typed early\n")
			guest.say("Linux\n")
			c.sees("Linux\n")
		})
	}
}

type attacher func(ctx context.Context, o console.AttachOptions, rw io.ReadWriteCloser) error

func (a attacher) Attach(ctx context.Context, _ string, o console.AttachOptions, rw io.ReadWriteCloser) error {
	return a(ctx, o, rw)
}

func TestTheEndOfInputLeavesTheOutputOn(t *testing.T) {
	for name, d := range dialects() {
		if strings.HasPrefix(name, "WebSocket") && d.version < 5 {
			continue // these have no way to say it
		}
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			s := start(t, Options{Attacher: h})
			guest := newSerial(t, h)
			c := d.dial(t, urlOf(t, s))
			c.types("all there is\n")
			if err := c.endInput(); err != nil {
				t.Fatal(err)
			}
			guest.hears("all there is\n")
			guest.say("answer\n")
			c.sees("answer\n")
			if err := c.hangUp(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the hub is left", func() bool { return h.Stats().Clients == 0 })
		})
	}
}

func TestWhatWasTypedBeforeHangingUpReachesTheGuest(t *testing.T) {
	for name, d := range dialects() {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			s := start(t, Options{Attacher: h})
			guest := newSerial(t, h)
			c := d.dial(t, urlOf(t, s))
			c.sees(greeting)
			for range 100 {
				c.types("line\n")
			}
			c.types("the end")
			if err := c.hangUp(); err != nil {
				t.Fatal(err)
			}
			guest.hears(strings.Repeat("line\n", 100) + "the end")
		})
	}
}

func TestTheLastToComeTypesAndTheOthersWatch(t *testing.T) {
	h := newHub(t)
	s := start(t, Options{Attacher: h})
	guest := newSerial(t, h)
	first := dialSPDY(t, http.MethodPost, urlOf(t, s), "v4.channel.k8s.io")
	first.sees(greeting)
	first.types("one ")
	guest.hears("one ")
	second := attachWS(t, urlOf(t, s), "v5.channel.k8s.io")
	first.sees("another client has taken over; you are watching only")
	first.types("not heard ")
	second.types("two")
	guest.hears("one two")
	guest.say("for both\n")
	first.sees("for both\n")
	second.sees("for both\n")
}

func TestAClosedConsoleEndsTheSessionInOrder(t *testing.T) {
	h := newHub(t)
	s := start(t, Options{Attacher: h})
	newSerial(t, h).say("alive\n")
	c := dialSPDY(t, http.MethodPost, urlOf(t, s), "v4.channel.k8s.io")
	c.sees("alive\n")
	h.CloseMachine(guestID)
	c.endsWith(success)
	c.sees("the console is closed")
}

func TestAStoppingProviderSaysSo(t *testing.T) {
	h := newHub(t)
	ctx, cancel := context.WithCancel(t.Context())
	s, err := New(Options{Attacher: h, Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx) }()
	eventually(t, "the server listens", func() bool { _, err := s.URL("x"); return err == nil })
	newSerial(t, h).say("alive\n")
	c := dialSPDY(t, http.MethodPost, urlOf(t, s), "v4.channel.k8s.io")
	c.sees("alive\n")
	cancel()
	c.endsWith(`{"metadata":{},"status":"Failure","message":"the provider is stopping; the guest goes on",` +
		`"reason":"ServiceUnavailable","code":503}`)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := s.URL(guestID); !machine.IsKind(err, machine.Unavailable) {
		t.Errorf("a stopped server answers with %v", err)
	}
}

func TestResizesAreReadAndDropped(t *testing.T) {
	h := newHub(t)
	s := start(t, Options{Attacher: h})
	guest := newSerial(t, h)
	session, streams := openSPDY(t, http.MethodGet, urlOf(t, s), []string{"v4.channel.k8s.io"},
		streamError, streamStdin, streamStdout, streamResize)
	c := spdyClient(t, session, streams)
	c.sees(greeting)
	resize := json.NewEncoder(streams[streamResize])
	for i := range 2000 { // more than any queue holds
		if err := resize.Encode(map[string]int{"Width": i % 3, "Height": i % 2}); err != nil {
			t.Fatal(err)
		}
	}
	c.types("key")
	guest.hears("key")
	ws, _ := dialWS(t, urlOf(t, s), "v5.channel.k8s.io")
	for range 100 {
		if err := ws.send(finalBit|opBinary, []byte("\x04{\"Width\":0,\"Height\":0}")); err != nil {
			t.Fatal(err)
		}
	}
	if err := ws.send(finalBit|opBinary, []byte("\x00stroke")); err != nil {
		t.Fatal(err)
	}
	guest.hears("keystroke")
}

func TestAClientMayDoWithoutInputAndResize(t *testing.T) {
	h := newHub(t)
	s := start(t, Options{Attacher: h})
	guest := newSerial(t, h)
	session, streams := openSPDY(t, http.MethodPost, urlOf(t, s), []string{"v4.channel.k8s.io"}, streamError, streamStdout)
	c := spdyClient(t, session, streams)
	c.sees(greeting)
	guest.say("output\n")
	c.sees("output\n")
	late, err := session.CreateStream(http.Header{streamType: {streamStdin}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	guest.hears("late")
	extra, err := session.CreateStream(http.Header{streamType: {"stderr"}})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := extra.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("stderr has %d bytes, %v", n, err)
	}
	_ = c.hangUp()
	eventually(t, "the hub is left", func() bool { return h.Stats().Clients == 0 })
}

func TestAClientWithoutOutputIsGivenUp(t *testing.T) {
	s := start(t, Options{Attacher: newHub(t), gather: 10 * time.Millisecond})
	session, _ := openSPDY(t, http.MethodPost, urlOf(t, s), []string{"v4.channel.k8s.io"})
	select {
	case <-session.CloseChan():
	case <-time.After(patience):
		t.Fatal("it is not")
	}
}

// stream is one that only counts its resets.
type stream struct {
	httpstream.Stream
	resets *int
}

func (s stream) Reset() error { *s.resets++; return nil }

func TestAClientThatOpensStreamsWithoutEndIsCutOff(t *testing.T) {
	ours, theirs := net.Pipe()
	st := &spdyTransport{conn: &liveConn{Conn: ours}, arrived: make(chan opened, maxStreams)}
	resets := 0
	for range maxStreams {
		_ = st.open(stream{resets: &resets}, nil)
	}
	if resets != 0 {
		t.Fatalf("%d of the first streams were reset", resets)
	}
	if err := st.open(stream{resets: &resets}, nil); err != nil || resets != 1 {
		t.Errorf("%d resets, %v", resets, err)
	}
	if _, err := theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection is open: %v", err)
	}
}
