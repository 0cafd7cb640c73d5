// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

const (
	// delimiter stands in no JSON text.
	delimiter = 0xff
	// maxBytes is what is read of one connection: far more than a guest with a thousand interfaces has to say.
	maxBytes = 1 << 20
)

// stream is the protocol on one connection.
type stream struct {
	w    io.Writer
	r    *bufio.Reader
	left int // bytes that may still be read
}

func newStream(rw io.ReadWriter) *stream {
	return &stream{w: rw, r: bufio.NewReader(rw), left: maxBytes}
}

// request is a command.
type request struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
}

// reply is an answer: Return or Error.
type reply struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
}

func (r reply) decode(result any) error {
	if result == nil {
		return nil
	}
	return json.Unmarshal(r.Return, result)
}

// send writes a command, the bytes of prefix before it.
func (s *stream) send(command string, arguments any, prefix ...byte) error {
	text, err := json.Marshal(request{Execute: command, Arguments: arguments})
	if err != nil {
		return err
	}
	_, err = s.w.Write(slices.Concat(prefix, text, []byte{'\n'}))
	return err
}

// sync drops all that was sent before the agent's answer to this id.
func (s *stream) sync(id int64) error {
	if err := s.send("guest-sync-delimited", map[string]int64{"id": id}, delimiter); err != nil {
		return err
	}
	want := strconv.FormatInt(id, 10)
	for {
		line, err := s.line()
		if err != nil {
			return err
		}
		at := bytes.LastIndexByte(line, delimiter)
		if at < 0 {
			continue // such as the complaint of older agents about our delimiter
		}
		if r, ok := parse(line[at+1:]); ok && string(bytes.TrimSpace(r.Return)) == want {
			return nil
		}
	}
}

// answer reads the next answer. Lines that are none are passed over: a kernel may log to the port as well.
func (s *stream) answer() (reply, error) {
	for {
		line, err := s.line()
		if err != nil {
			return reply{}, err
		}
		if r, ok := parse(line); ok {
			return r, nil
		}
	}
}

func parse(line []byte) (reply, bool) {
	var r reply
	if err := json.Unmarshal(line, &r); err != nil {
		return r, false
	}
	return r, (r.Error != nil) != (r.Return != nil)
}

// line reads up to the next line feed, within what may be read at all.
func (s *stream) line() ([]byte, error) {
	var line []byte
	for {
		piece, err := s.r.ReadSlice('\n')
		s.left -= len(piece)
		if s.left < 0 {
			return nil, fmt.Errorf("%w: more than %d bytes", ErrProtocol, maxBytes)
		}
		line = append(line, piece...)
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, fmt.Errorf("%w: the connection ended in the middle of a line: %w", ErrProtocol, io.ErrUnexpectedEOF)
		default:
			return nil, err
		}
	}
}
