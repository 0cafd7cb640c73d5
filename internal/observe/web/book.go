// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
)

// book knows all connections of a server, the oldest first.
type book struct {
	most int

	mu    sync.Mutex
	order *list.List // of *visitor
	where map[net.Conn]*list.Element
}

type visitor struct {
	conn net.Conn
	busy bool // a request is being answered
}

func newBook(most int) *book {
	return &book{most: most, order: list.New(), where: map[net.Conn]*list.Element{}}
}

// state is told of each connection's beginning and end. One too many sends the oldest away that has no request: a
// client that is slow on purpose looks just like that, whether it has sent some bytes or none.
func (b *book) state(conn net.Conn, s http.ConnState) {
	b.mu.Lock()
	var leaves net.Conn
	switch s {
	case http.StateNew:
		b.where[conn] = b.order.PushBack(&visitor{conn: conn})
		if b.order.Len() > b.most {
			leaves = b.pickLocked()
			b.removeLocked(leaves)
		}
	case http.StateClosed, http.StateHijacked:
		b.removeLocked(conn)
	}
	b.mu.Unlock()
	if leaves != nil {
		_ = leaves.Close()
	}
}

// pickLocked returns the connection that has to go: the newest one if all others are busy.
func (b *book) pickLocked() net.Conn {
	for e := b.order.Front(); e != nil; e = e.Next() {
		if v, _ := e.Value.(*visitor); !v.busy {
			return v.conn
		}
	}
	v, _ := b.order.Back().Value.(*visitor)
	return v.conn
}

func (b *book) removeLocked(conn net.Conn) {
	if e := b.where[conn]; e != nil {
		b.order.Remove(e)
		delete(b.where, conn)
	}
}

type connKey struct{}

func (b *book) context(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// count marks a connection busy while its request is answered.
func (b *book) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(connKey{}).(net.Conn)
		b.mark(conn, true)
		defer b.mark(conn, false)
		next.ServeHTTP(w, r)
	})
}

// mark puts a connection that was used last in line, too.
func (b *book) mark(conn net.Conn, busy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.where[conn]; e != nil {
		v, _ := e.Value.(*visitor)
		v.busy = busy
		b.order.MoveToBack(e)
	}
}
