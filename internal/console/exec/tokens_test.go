// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestATokenOpensItsMachineOnce(t *testing.T) {
	tokens := NewTokens(nil)
	a, b := tokens.Issue("a"), tokens.Issue("b")
	if a == b || len(a) < 26 || url.PathEscape(a) != a { // 26 characters of base32 are 130 bits
		t.Errorf("tokens %q and %q", a, b)
	}
	if id, ok := tokens.Take(b); !ok || id != "b" {
		t.Errorf("b opens %q, %t", id, ok)
	}
	if _, ok := tokens.Take(b); ok || tokens.Known(b) {
		t.Error("b opens twice")
	}
	if !tokens.Known(a) || tokens.Known("") || tokens.Known("x") {
		t.Error("the wrong tokens are known")
	}
}

func TestATokenLivesAMinute(t *testing.T) {
	now := time.Unix(0, 0)
	tokens := NewTokens(func() time.Time { return now })
	first := tokens.Issue("a")
	now = now.Add(TokenTTL - 1)
	second := tokens.Issue("a")
	if !tokens.Known(first) {
		t.Error("the first is gone too early")
	}
	now = now.Add(1)
	if _, ok := tokens.Take(first); ok {
		t.Error("the first opens after a minute")
	}
	if _, ok := tokens.Take(second); !ok {
		t.Error("the second is gone with the first")
	}
	if tokens.order.Len() != 0 || len(tokens.byKey) != 0 {
		t.Error("something is kept")
	}
}

func TestTheOldestUnusedTokenMakesRoom(t *testing.T) {
	tokens := NewTokens(nil)
	var all []string
	for i := range MaxTokens + 10 {
		all = append(all, tokens.Issue(fmt.Sprint(i)))
	}
	if len(tokens.byKey) != MaxTokens || tokens.order.Len() != MaxTokens {
		t.Errorf("%d tokens are kept", len(tokens.byKey))
	}
	for i, token := range all {
		if id, ok := tokens.Take(token); ok != (i >= 10) || ok && id != fmt.Sprint(i) {
			t.Fatalf("token %d: %q, %t", i, id, ok)
		}
	}
}

func TestManyWhoTakeATokenAtOnceGetItOnce(t *testing.T) {
	tokens := NewTokens(nil)
	for range 100 {
		token := tokens.Issue("a")
		var got atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if _, ok := tokens.Take(token); ok {
					got.Add(1)
				}
			})
		}
		all.Wait()
		if got.Load() != 1 {
			t.Fatalf("taken %d times", got.Load())
		}
	}
}
