// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"container/list"
	"crypto/rand"
	"sync"
	"time"
)

const (
	// TokenTTL is how long a token can be used, the same as libvirt-provider's.
	TokenTTL = time.Minute
	// MaxTokens is how many unused tokens there may be. The oldest makes room: refusing a new one with
	// ResourceExhausted makes the machinepoollet panic.
	MaxTokens = 1024
)

// Tokens are the keys handed out for machines' consoles. Each opens one console once. Its methods may be called from
// several goroutines.
type Tokens struct {
	now func() time.Time

	mu    sync.Mutex
	order *list.List // of issued, the oldest first; all live equally long, so it expires first
	byKey map[string]*list.Element
}

type issued struct {
	token   string
	machine string
	expires time.Time
}

// NewTokens makes an empty store. A nil clock is the system's.
func NewTokens(now func() time.Time) *Tokens {
	if now == nil {
		now = time.Now
	}
	return &Tokens{now: now, order: list.New(), byKey: map[string]*list.Element{}}
}

// Issue returns a new token for a machine: at least 128 random bits in letters and digits.
func (t *Tokens) Issue(machineID string) string {
	token := rand.Text()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire()
	if t.order.Len() >= MaxTokens {
		t.remove(t.order.Front())
	}
	t.byKey[token] = t.order.PushBack(issued{token, machineID, t.now().Add(TokenTTL)})
	return token
}

// Known says whether a token can be taken now.
func (t *Tokens) Known(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire()
	return t.byKey[token] != nil
}

// Take uses a token up and returns its machine; false if it was never issued, was used, or is too old.
func (t *Tokens) Take(token string) (machineID string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire()
	e := t.byKey[token]
	if e == nil {
		return "", false
	}
	t.remove(e)
	return e.Value.(issued).machine, true
}

func (t *Tokens) expire() {
	now := t.now()
	for e := t.order.Front(); e != nil && !now.Before(e.Value.(issued).expires); e = t.order.Front() {
		t.remove(e)
	}
}

func (t *Tokens) remove(e *list.Element) {
	delete(t.byKey, t.order.Remove(e).(issued).token)
}
