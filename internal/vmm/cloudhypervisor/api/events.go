// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"time"
)

// Event is what the event monitor writes.
type Event struct {
	Timestamp  Timestamp         `json:"timestamp"`
	Source     string            `json:"source"` // "vmm", "vm", "guest", "virtio-device", …
	Event      string            `json:"event"`
	Properties map[string]string `json:"properties"`
}

// Timestamp is the time since the VMM's start.
type Timestamp struct {
	Secs  int64 `json:"secs"`
	Nanos int64 `json:"nanos"`
}

// SinceStart returns the timestamp as a duration.
func (t Timestamp) SinceStart() time.Duration {
	return time.Duration(t.Secs)*time.Second + time.Duration(t.Nanos)
}

// maxPartialEvent is how much of one event is kept while its end is awaited. Real ones have some 200 bytes.
const maxPartialEvent = 64 << 10

// Decoder takes an event stream apart: pretty-printed JSON objects with empty lines between them, cut into pieces
// anywhere. Text that is no event is skipped up to the next empty line. The zero value is ready.
type Decoder struct {
	rest []byte
}

// Feed adds a piece and returns the events that it completes. Lost is true when something had to be skipped.
func (d *Decoder) Feed(piece []byte) (events []Event, lost bool) {
	d.rest = append(d.rest, piece...)
	for {
		// A punched or truncated file reads as zero bytes.
		d.rest = bytes.TrimLeft(d.rest, "\x00 \t\r\n")
		if len(d.rest) == 0 {
			d.rest = nil
			return events, lost
		}
		dec := json.NewDecoder(bytes.NewReader(d.rest))
		var e Event
		err := dec.Decode(&e)
		switch {
		case err == nil:
			events = append(events, e)
			d.rest = d.rest[dec.InputOffset():]
			continue
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			if len(d.rest) <= maxPartialEvent {
				return events, lost
			}
		}
		lost = true
		if !d.skip() {
			return events, lost
		}
	}
}

// skip drops the text up to the next empty line; it drops all and returns false if there is none.
func (d *Decoder) skip() bool {
	if i := bytes.Index(d.rest, []byte("\n\n")); i >= 0 {
		d.rest = d.rest[i+2:]
		return true
	}
	d.rest = nil
	return false
}

// Reset forgets an unfinished event.
func (d *Decoder) Reset() { d.rest = nil }
