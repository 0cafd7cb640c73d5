// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Opcodes of RFC 6455.
const (
	opContinuation = 0x0
	opText         = 0x1
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xA
)

// Close codes of RFC 6455.
const (
	closeNormal   = 1000
	closeProtocol = 1002
	closeTooBig   = 1009
)

const (
	finalBit   = 0x80
	maskBit    = 0x80
	maxControl = 125 // payload of a control frame
	length16   = 126
	length64   = 127
	// maxMessage bounds what a client can make the daemon hold. client-go sends at most 32 KiB at once.
	maxMessage = 256 << 10
)

// closeError is a reason to end a WebSocket connection.
type closeError struct {
	code int
	text string
}

func (e *closeError) Error() string { return fmt.Sprintf("%s (%d)", e.text, e.code) }

var errHungUp = errors.New("the client has hung up")

// frames is the server's side of a WebSocket connection without extensions. One goroutine may read and several write.
type frames struct {
	rw io.ReadWriter

	mu   sync.Mutex
	out  []byte // for one frame
	over bool   // a close frame was sent
}

// read returns the next whole message. Pings in between are answered. It returns errHungUp after a close frame, which is
// answered, a closeError after a violation, which the client was told, or what the connection says.
func (f *frames) read() (message []byte, err error) {
	defer func() {
		var reason *closeError
		if errors.As(err, &reason) {
			_ = f.close(reason.code)
		}
	}()
	for started := false; ; {
		final, op, payload, err := f.frame(maxMessage - len(message))
		if err != nil {
			return nil, err
		}
		switch op {
		case opPing:
			if err := f.write(opPong, payload); err != nil {
				return nil, err
			}
			continue
		case opPong:
			continue
		case opClose:
			_ = f.close(closeNormal)
			return nil, errHungUp
		case opText, opBinary:
			if started {
				return nil, &closeError{closeProtocol, "a message within a message"}
			}
			started = true
		case opContinuation:
			if !started {
				return nil, &closeError{closeProtocol, "a continuation of nothing"}
			}
		default:
			return nil, &closeError{closeProtocol, "an unknown opcode"}
		}
		message = append(message, payload...)
		if final {
			return message, nil
		}
	}
}

// frame reads one frame of at most limit bytes.
func (f *frames) frame(limit int) (final bool, op byte, payload []byte, err error) {
	var head [2 + 8]byte
	if _, err := io.ReadFull(f.rw, head[:2]); err != nil {
		return false, 0, nil, err
	}
	final, op = head[0]&finalBit != 0, head[0]&0x0f
	control := op >= opClose
	size := uint64(head[1] &^ maskBit)
	switch {
	case head[0]&0x70 != 0:
		return false, 0, nil, &closeError{closeProtocol, "an extension that was not agreed on"}
	case head[1]&maskBit == 0:
		return false, 0, nil, &closeError{closeProtocol, "a frame without a mask"}
	case control && (!final || size > maxControl):
		return false, 0, nil, &closeError{closeProtocol, "a control frame in parts or too long"}
	}
	more := map[uint64]int{length16: 2, length64: 8}[size]
	if _, err := io.ReadFull(f.rw, head[2:2+more]); err != nil {
		return false, 0, nil, err
	}
	switch size {
	case length16:
		size = uint64(binary.BigEndian.Uint16(head[2:]))
	case length64:
		size = binary.BigEndian.Uint64(head[2:])
	}
	if !control && size > uint64(limit) {
		return false, 0, nil, &closeError{closeTooBig, "a message is too long"}
	}
	var mask [4]byte
	if _, err := io.ReadFull(f.rw, mask[:]); err != nil {
		return false, 0, nil, err
	}
	payload = make([]byte, size)
	if _, err := io.ReadFull(f.rw, payload); err != nil {
		return false, 0, nil, err
	}
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	return final, op, payload, nil
}

// write sends one frame made of parts.
func (f *frames) write(op byte, parts ...[]byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return errHungUp
	}
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	out := f.out[:0]
	out = append(out, finalBit|op)
	switch {
	case size <= maxControl:
		out = append(out, byte(size))
	case size <= 0xffff:
		out = binary.BigEndian.AppendUint16(append(out, length16), uint16(size))
	default:
		out = binary.BigEndian.AppendUint64(append(out, length64), uint64(size))
	}
	for _, p := range parts {
		out = append(out, p...)
	}
	f.out = out
	f.over = op == opClose
	_, err := f.rw.Write(out)
	return err
}

// close says that nothing more will be sent.
func (f *frames) close(code int) error {
	return f.write(opClose, binary.BigEndian.AppendUint16(nil, uint16(code)))
}
