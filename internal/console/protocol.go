// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// The local protocol: the client sends one line
//
//	ATTACH <machine id> [ro] [takeover]
//
// and gets "OK" or "ERR <kind>: <text>" on a line; after OK both directions are the bytes of the console.
const (
	maxRequest  = 256 // bytes of the request line with its end
	maxAnswer   = 1024
	requestTime = 10 * time.Second // for the request line, and for taking the answer

	wordAttach   = "ATTACH"
	wordReadOnly = "ro"
	wordTakeOver = "takeover"
	wordOK       = "OK"
	wordErr      = "ERR "
)

var (
	errLineTooLong = errors.New("line is too long")
	errBadRequest  = machine.Errorf(machine.Invalid, "the request is not: %s <machine id> [%s] [%s]",
		wordAttach, wordReadOnly, wordTakeOver)
)

func formatRequest(machineID string, o AttachOptions) (string, error) {
	if machineID == "" || strings.ContainsFunc(machineID, notInID) {
		return "", machine.InvalidField("machine id", "%q is none", machineID)
	}
	line := wordAttach + " " + machineID
	if o.ReadOnly {
		line += " " + wordReadOnly
	}
	if o.TakeOver {
		line += " " + wordTakeOver
	}
	if line += "\n"; len(line) > maxRequest {
		return "", machine.InvalidField("machine id", "is too long")
	}
	return line, nil
}

func parseRequest(line string) (machineID string, o AttachOptions, err error) {
	words := strings.Split(strings.TrimSuffix(line, "\r"), " ")
	if len(words) < 2 || words[0] != wordAttach || words[1] == "" || strings.ContainsFunc(words[1], notInID) {
		return "", o, errBadRequest
	}
	for _, w := range words[2:] {
		switch {
		case w == wordReadOnly && !o.ReadOnly:
			o.ReadOnly = true
		case w == wordTakeOver && !o.TakeOver:
			o.TakeOver = true
		default:
			return "", o, errBadRequest
		}
	}
	return words[1], o, nil
}

// readLine reads up to a line feed, which it takes off, and nothing behind it: what follows belongs to the console.
func readLine(r io.ByteReader, limit int) (string, error) {
	var line []byte
	for {
		b, err := r.ReadByte()
		switch {
		case err != nil:
			return "", err
		case b == '\n':
			return string(line), nil
		case len(line) >= limit-1:
			return "", errLineTooLong
		}
		line = append(line, b)
	}
}

func formatError(err error) string {
	text := strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, err.Error())
	line := wordErr + machine.KindOf(err).String() + ": " + text
	return line[:min(len(line), maxAnswer-1)] + "\n"
}

// parseAnswer turns an answer into nil or the error that it tells, with its kind.
func parseAnswer(line string) error {
	if line == wordOK {
		return nil
	}
	text, ok := strings.CutPrefix(line, wordErr)
	if !ok {
		return machine.Errorf(machine.Unavailable, "the console socket answers %q", line)
	}
	for k := machine.Invalid; k <= machine.Unimplemented; k++ {
		if rest, ok := strings.CutPrefix(text, k.String()+": "); ok {
			return machine.Errorf(k, "%s", rest)
		}
	}
	return errors.New(text)
}

// buffered is a connection of which a buffer may have read too much; that comes first.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// Dial attaches to a machine's console over the daemon's local socket. The connection carries the console's bytes from
// then on; closing it detaches. Errors have the daemon's kind: machine.NotFound, machine.FailedPrecondition when
// another client types, machine.Exhausted when too many are attached, machine.Unavailable when nobody answers. It
// waits as long as ctx allows, at most ten seconds for the answer.
func Dial(ctx context.Context, socket, machineID string, o AttachOptions) (net.Conn, error) {
	request, err := formatRequest(machineID, o)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, machine.Wrap(machine.Unavailable, err, "reach the daemon's console socket")
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	attached, err := ask(conn, request)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return attached, nil
}

func ask(conn net.Conn, request string) (net.Conn, error) {
	_ = conn.SetDeadline(time.Now().Add(requestTime))
	_, sent := io.WriteString(conn, request) // a server that has no room answers before it reads, and hangs up
	r := bufio.NewReader(conn)
	line, err := readLine(r, maxAnswer)
	if err != nil {
		return nil, machine.Wrap(machine.Unavailable, errors.Join(sent, err), "ask the daemon for the console")
	}
	if err := parseAnswer(line); err != nil {
		return nil, fmt.Errorf("attach to console: %w", err)
	}
	_ = conn.SetDeadline(time.Time{})
	return buffered{conn, r}, nil
}
