// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Gate is a check of something that somebody else tells about. It begins shut.
type Gate struct {
	mu     sync.Mutex
	reason string // why it is shut; empty once it is open
}

// errShut matches what a shut gate answers.
var errShut = errors.New("shut")

// shutError is why a gate is shut.
type shutError string

func (e shutError) Error() string        { return string(e) }
func (e shutError) Is(target error) bool { return target == errShut }

// NewGate makes a gate that is shut for a reason.
func NewGate(reason string) *Gate {
	if reason == "" {
		reason = "not yet"
	}
	return &Gate{reason: reason}
}

// Open says that what was waited for is there.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reason = ""
}

// Check is the gate as a check; it is asked anew each time.
func (g *Gate) Check(name string, purpose Purpose) Check {
	return Check{Name: name, For: purpose, MaxAge: time.Nanosecond, Probe: func(context.Context) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.reason != "" {
			return shutError(g.reason)
		}
		return nil
	}}
}
