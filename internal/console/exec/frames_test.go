// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// duplex reads from one and writes to another.
type duplex struct {
	io.Reader
	io.Writer
}

// framed renders frames as a client does: pairs of a first byte and a payload.
func framed(t testing.TB, parts ...any) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	var out bytes.Buffer
	done := make(chan struct{})
	go func() { defer close(done); _, _ = io.Copy(&out, theirs) }()
	c := &wsClient{Conn: ours}
	for i := 0; i < len(parts); i += 2 {
		if err := c.send(byte(parts[i].(int)), []byte(parts[i+1].(string))); err != nil {
			t.Fatal(err)
		}
	}
	_ = ours.Close()
	<-done
	return out.Bytes()
}

func TestMessagesArePutTogether(t *testing.T) {
	long := strings.Repeat("x", maxMessage)
	for name, tc := range map[string]struct {
		in      []byte
		want    string
		code    int    // of the closeError
		answers string // what goes back
	}{
		"one frame":             {in: framed(t, finalBit|opText, "hello"), want: "hello"},
		"an empty one":          {in: framed(t, finalBit|opBinary, ""), want: ""},
		"of 126 bytes":          {in: framed(t, finalBit|opBinary, long[:126]), want: long[:126]},
		"as long as can be":     {in: framed(t, finalBit|opBinary, long), want: long},
		"in parts":              {in: framed(t, opBinary, "a", opContinuation, "b", finalBit|opContinuation, "c"), want: "abc"},
		"a ping between parts":  {in: framed(t, opBinary, "a", finalBit|opPing, "p", finalBit|opContinuation, "b"), want: "ab", answers: "\x8a\x01p"},
		"a pong is nothing":     {in: framed(t, finalBit|opPong, "p", finalBit|opText, "a"), want: "a"},
		"too long":              {in: framed(t, finalBit|opBinary, long+"x"), code: closeTooBig, answers: "\x88\x02\x03\xf1"},
		"too long in parts":     {in: framed(t, opBinary, long, finalBit|opContinuation, "x"), code: closeTooBig, answers: "\x88\x02\x03\xf1"},
		"a part of nothing":     {in: framed(t, finalBit|opContinuation, "x"), code: closeProtocol, answers: "\x88\x02\x03\xea"},
		"one within another":    {in: framed(t, opText, "x", finalBit|opText, "y"), code: closeProtocol, answers: "\x88\x02\x03\xea"},
		"an unknown opcode":     {in: framed(t, finalBit|3, "x"), code: closeProtocol, answers: "\x88\x02\x03\xea"},
		"a reserved bit":        {in: framed(t, finalBit|0x40|opText, "x"), code: closeProtocol, answers: "\x88\x02\x03\xea"},
		"a long ping":           {in: framed(t, finalBit|opPing, long[:126]), code: closeProtocol, answers: "\x88\x02\x03\xea"},
		"a ping in parts":       {in: framed(t, opPing, "x"), code: closeProtocol, answers: "\x88\x02\x03\xea"},
		"a frame without mask":  {in: []byte("\x82\x01x"), code: closeProtocol, answers: "\x88\x02\x03\xea"},
		"a length beyond sense": {in: []byte("\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff"), code: closeTooBig, answers: "\x88\x02\x03\xf1"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			f := &frames{rw: duplex{bytes.NewReader(tc.in), &out}}
			got, err := f.read()
			var reason *closeError
			if errors.As(err, &reason) != (tc.code != 0) || reason != nil && reason.code != tc.code {
				t.Fatalf("error %v, want code %d", err, tc.code)
			}
			if err == nil && string(got) != tc.want {
				t.Errorf("%d bytes %.20q, want %d", len(got), got, len(tc.want))
			}
			if out.String() != tc.answers {
				t.Errorf("answers %q, want %q", out.String(), tc.answers)
			}
		})
	}
}

func TestACloseIsAnsweredOnceAndEndsWriting(t *testing.T) {
	var out bytes.Buffer
	f := &frames{rw: duplex{bytes.NewReader(framed(t, finalBit|opClose, "\x03\xe8")), &out}}
	if _, err := f.read(); !errors.Is(err, errHungUp) {
		t.Errorf("read: %v", err)
	}
	if err := f.write(opBinary, []byte("x")); !errors.Is(err, errHungUp) || out.String() != "\x88\x02\x03\xe8" {
		t.Errorf("write: %v, out %q", err, out.String())
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(framed(f, opBinary, "a", finalBit|opPing, "p", finalBit|opContinuation, "b"))
	f.Add([]byte("\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		fr := &frames{rw: duplex{bytes.NewReader(in), io.Discard}}
		for {
			m, err := fr.read()
			if err != nil {
				return
			}
			if len(m) > maxMessage {
				t.Fatalf("a message of %d bytes", len(m))
			}
		}
	})
}

func TestALongSPDYFrameEndsTheConnection(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	live := liveFor(ours)
	c := &spdyConn{liveConn: live}
	go func() {
		_, _ = theirs.Write([]byte("\x00\x00\x00\x01\x00\x00\x00\x05hel"))
		_, _ = theirs.Write([]byte("lo\x80\x03"))
		_, _ = theirs.Write([]byte("\x00\x06\x00\x00\x00\x04\x00\x00\x00\x01\x00\x00\x00\x01\x00"))
		_, _ = theirs.Write([]byte("\x04\x00\x01")) // 256 KiB and one
	}()
	n, err := 0, error(nil)
	for err == nil {
		var more int
		more, err = c.Read(make([]byte, 7))
		n += more
	}
	if !errors.Is(err, errFrame) || n < 8+5+12 {
		t.Errorf("%v after %d bytes", err, n)
	}
}
