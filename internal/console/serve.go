// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// MaxClients is how many connections the local socket serves at once. Further ones are told so and closed.
const MaxClients = 64

// acceptPause is how long to wait when the process has run out of file descriptors.
const acceptPause = 50 * time.Millisecond

var errTooMany = machine.Errorf(machine.Exhausted, "%d clients are attached already", MaxClients)

// Serve lets local clients attach over l, with the protocol that Dial speaks. Who may connect is decided by the mode of
// l's socket alone. It returns nil when ctx has ended and all its connections are closed, or the error that broke l. It
// closes l, not h.
func Serve(ctx context.Context, l net.Listener, h *Hub, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer func() { _ = l.Close() }()
	room := make(chan struct{}, MaxClients)
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept console client: %w", err)
		case err != nil:
			log.Warn("console client not accepted", "error", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case room <- struct{}{}:
			clients.Go(func() {
				defer func() { <-room }()
				serveClient(ctx, conn, h, log)
			})
		default:
			refuse(conn, errTooMany)
		}
	}
}

// refuse answers without waiting for anything. The answer fits into the socket's buffer.
func refuse(conn net.Conn, err error) {
	_ = conn.SetWriteDeadline(time.Now().Add(acceptPause))
	_, _ = io.WriteString(conn, formatError(err))
	_ = conn.Close()
}

func serveClient(ctx context.Context, conn net.Conn, h *Hub, log *slog.Logger) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(requestTime))
	r := bufio.NewReaderSize(conn, maxRequest)
	line, err := readLine(r, maxRequest)
	if errors.Is(err, errLineTooLong) {
		refuse(conn, errBadRequest)
	}
	if err != nil {
		return
	}
	id, o, err := parseRequest(line)
	if err != nil {
		refuse(conn, err)
		return
	}
	c, err := h.join(ctx, id, o, buffered{conn, r})
	if err != nil {
		refuse(conn, err)
		return
	}
	if _, err := io.WriteString(conn, wordOK+"\n"); err != nil {
		c.leave()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	log.Info("console attached", "machine", id, "readOnly", o.ReadOnly, "takeOver", o.TakeOver)
	_ = c.run(ctx) // only says that ctx has ended
	log.Info("console detached", "machine", id)
}
