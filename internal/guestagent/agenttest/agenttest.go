// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package agenttest is a guest agent that misbehaves on request, behind a real Unix socket, with or without the
// handshake of a hybrid vsock.
//
// It exists so that everything that asks a guest agent is tested against silence, garbage, halves, delays and lies
// without a guest. It must never be part of the daemon.
package agenttest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/guestagent"
)

// Sync is the name under which the answers to guest-sync-delimited are set.
const Sync = "guest-sync-delimited"

// Script says what an agent does. The zero value is an agent that answers guest-ping and nothing else.
type Script struct {
	// Greeting is sent when a client connects, before anything is read.
	Greeting []byte
	// Answers are by command; what is not there is refused as CommandNotFound. Sync and guest-ping have answers by
	// themselves, which one here replaces; a zero Return of Sync stands for the right id.
	Answers map[string]Answer
	// Vsock wants "CONNECT <VsockPort>" first and answers with Handshake, "OK 1073741825\n" when empty, nothing at
	// all when it is Silence.
	Vsock     bool
	Handshake string
}

// Silence is a handshake that does not come.
const Silence = "silence"

// Answer is what follows a command.
type Answer struct {
	Return any                 // result
	Error  *guestagent.Refusal // instead of a result
	Before []byte              // sent before the answer
	Raw    []byte              // sent instead of the answer
	Times  int                 // how often it is sent; default 1
	Half   bool                // only the first half is sent
	Pause  time.Duration       // between bytes
	Silent bool                // nothing is sent
	HangUp bool                // the connection ends afterwards
}

// Agent is a running fake.
type Agent struct {
	script Script
	path   string
	ln     net.Listener
	wg     sync.WaitGroup

	mu      sync.Mutex
	ended   bool
	conns   map[net.Conn]struct{}
	calls   []string
	most    int // connections at a time
	stopped chan struct{}
}

// Start starts an agent, which ends with the test.
func Start(t testing.TB, script Script) *Agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "qga") // t.TempDir would be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{
		script: script, path: filepath.Join(dir, "agent.sock"),
		conns: map[net.Conn]struct{}{}, stopped: make(chan struct{}),
	}
	if a.ln, err = net.Listen("unix", a.path); err != nil {
		t.Fatal(err)
	}
	a.wg.Go(a.accept)
	t.Cleanup(func() {
		a.stop()
		_ = os.RemoveAll(dir)
	})
	return a
}

// Path is the agent's socket.
func (a *Agent) Path() string { return a.path }

// Dial connects as the kind of channel wants it.
func (a *Agent) Dial(ctx context.Context) (net.Conn, error) {
	if a.script.Vsock {
		return guestagent.DialVsock(ctx, a.path, guestagent.VsockPort)
	}
	return guestagent.DialUnix(ctx, a.path)
}

// Calls are the commands so far, in order, without Sync; a command with arguments has them behind a space.
func (a *Agent) Calls() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.calls)
}

// MostConnections is how many connections there were at one time.
func (a *Agent) MostConnections() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.most
}

func (a *Agent) stop() {
	a.mu.Lock()
	a.ended = true
	close(a.stopped)
	for c := range a.conns {
		_ = c.Close()
	}
	a.mu.Unlock()
	_ = a.ln.Close()
	a.wg.Wait()
}

func (a *Agent) accept() {
	for {
		c, err := a.ln.Accept()
		if err != nil {
			return
		}
		a.mu.Lock()
		if a.ended {
			a.mu.Unlock()
			_ = c.Close()
			return
		}
		a.conns[c] = struct{}{}
		a.most = max(a.most, len(a.conns))
		a.wg.Go(func() { a.serve(c) })
		a.mu.Unlock()
	}
}

func (a *Agent) serve(c net.Conn) {
	defer func() {
		a.mu.Lock()
		delete(a.conns, c)
		a.mu.Unlock()
		_ = c.Close()
	}()
	r := bufio.NewReader(c)
	if a.script.Vsock && !a.connected(r, c) {
		return
	}
	if _, err := c.Write(a.script.Greeting); err != nil {
		return
	}
	for {
		line, err := r.ReadBytes('\n')
		if err != nil || !a.answer(c, bytes.TrimLeft(line, "\xff")) {
			return
		}
	}
}

// connected plays the vsock device.
func (a *Agent) connected(r *bufio.Reader, c net.Conn) bool {
	line, err := r.ReadString('\n')
	if err != nil || line != fmt.Sprintf("CONNECT %d\n", guestagent.VsockPort) {
		return false
	}
	text := a.script.Handshake
	switch text {
	case Silence:
		_, _ = r.ReadByte() // until the client leaves
		return false
	case "":
		text = "OK 1073741825\n"
	}
	_, err = c.Write([]byte(text))
	return err == nil
}

// answer reports whether the connection goes on.
func (a *Agent) answer(c net.Conn, line []byte) bool {
	var request struct {
		Execute   string          `json:"execute"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if json.Unmarshal(line, &request) != nil {
		return true
	}
	answer, known := a.script.Answers[request.Execute]
	switch {
	case request.Execute == Sync:
		if answer.Return == nil {
			var args struct {
				ID int64 `json:"id"`
			}
			_ = json.Unmarshal(request.Arguments, &args)
			answer.Return = args.ID
		}
		answer.Before = append(slices.Clone(answer.Before), 0xff)
	case !known && request.Execute == "guest-ping":
		answer.Return = struct{}{}
	case !known:
		answer.Error = &guestagent.Refusal{Class: "CommandNotFound", Desc: "The command " + request.Execute + " has not been found"}
	}
	if request.Execute != Sync {
		a.mu.Lock()
		a.calls = append(a.calls, string(bytes.TrimSpace(append([]byte(request.Execute+" "), request.Arguments...))))
		a.mu.Unlock()
	}
	return a.send(c, answer)
}

func (a *Agent) send(c net.Conn, answer Answer) bool {
	text, err := json.Marshal(map[string]any{"return": answer.Return})
	if e := answer.Error; e != nil {
		text, err = json.Marshal(map[string]any{"error": map[string]string{"class": e.Class, "desc": e.Desc}})
	}
	if err != nil {
		return false
	}
	text = append(append(slices.Clone(answer.Before), text...), '\n')
	if answer.Raw != nil {
		text = answer.Raw
	}
	if answer.Half {
		text = text[:len(text)/2]
	}
	text = bytes.Repeat(text, max(1, answer.Times))
	if answer.Silent {
		text = nil
	}
	if answer.Pause == 0 {
		_, err = c.Write(text)
		return err == nil && !answer.HangUp
	}
	for _, b := range text {
		select {
		case <-time.After(answer.Pause):
		case <-a.stopped:
			return false
		}
		if _, err := c.Write([]byte{b}); err != nil {
			return false
		}
	}
	return !answer.HangUp
}
