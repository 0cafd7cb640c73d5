// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
	"unicode"

	"pgregory.net/rapid"
)

// duplex reads what a guest has sent and drops what is sent to it.
type duplex struct{ io.Reader }

func (duplex) Write(p []byte) (int, error) { return len(p), nil }

// noise is what may lie in a channel: bytes of any kind, pieces of the protocol, answers to others.
func noise(t *rapid.T, label string) []byte {
	piece := rapid.OneOf(
		rapid.SliceOfN(rapid.Byte(), 0, 64),
		rapid.SampledFrom([][]byte{
			{delimiter},
			{'\n'},
			{0},
			[]byte("{"), []byte(`{"return": `), []byte("{\"return\": {}}\n"),
			[]byte("\xff{\"return\": 41}\n"), []byte("\xff{\"return\": 4"), []byte(`{"error": {"class": "GenericError"}}` + "\n"),
			bytes.Repeat([]byte("y"), 5000),
		}),
	)
	return bytes.Join(rapid.SliceOfN(piece, 0, 16).Draw(t, label), nil)
}

func TestSynchronisingFindsItsAnswerBehindAnyNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const id = 42
		sent := fmt.Appendf(noise(t, "noise"), "\xff{\"return\": %d}\n", id)
		// Noise between the two may hold whole lines, but what it leaves unfinished would spoil the answer.
		lines := rapid.SliceOfN(rapid.SampledFrom([]string{"\n", "{}\n", "[1]\n", "text\n", "\x00\xff\n"}), 0, 4).Draw(t, "lines")
		for _, l := range lines {
			sent = append(sent, l...)
		}
		sent = append(sent, "{\"return\": {\"host-name\": \"x\"}}\n"...)
		s := newStream(duplex{bytes.NewReader(sent)})
		if err := s.sync(id); err != nil {
			t.Fatalf("synchronise: %v", err)
		}
		r, err := s.answer()
		if err != nil || string(r.Return) != `{"host-name": "x"}` {
			t.Fatalf("answer %q, error %v", r.Return, err)
		}
	})
}

func TestNoNoiseIsTakenForTheAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStream(duplex{bytes.NewReader(noise(t, "noise"))})
		if err := s.sync(42); err == nil {
			t.Fatal("synchronised")
		} else if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("error %v", err)
		}
	})
}

func TestNoMoreIsReadThanAllowed(t *testing.T) {
	endless := &counter{}
	s := newStream(duplex{endless})
	if err := s.sync(42); !errors.Is(err, ErrProtocol) {
		t.Errorf("error %v", err)
	}
	if endless.n > maxBytes+1<<16 {
		t.Errorf("%d bytes were read", endless.n)
	}
}

// counter is an endless line.
type counter struct{ n int }

func (c *counter) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	c.n += len(p)
	return len(p), nil
}

func TestTextOfAGuestBecomesShortAndPrintable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(0, 20).Draw(t, "most")
		got := printable(string(rapid.SliceOf(rapid.Byte()).Draw(t, "text")), most)
		if len(got) > most {
			t.Fatalf("%q has %d bytes", got, len(got))
		}
		for _, r := range got {
			if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
				t.Fatalf("%q is not printable", got)
			}
		}
	})
}
