// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"syscall"
	"time"
)

// messageWriter is what of a Unix connection takes descriptors.
type messageWriter interface {
	WriteMsgUnix(b, oob []byte, addr *net.UnixAddr) (n, oobn int, err error)
}

// doWithFiles sends a request with descriptors beside it. The HTTP client of the standard library cannot: they go with
// the very message that begins the request.
func (c *Client) doWithFiles(req *http.Request, k call) error {
	ctx := req.Context()
	conn, err := c.dial(ctx)
	if err != nil {
		return unavailable(k.name, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := sendWithFiles(conn, req, k.files); err != nil {
		return unavailable(k.name, orEnd(ctx, err))
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return unavailable(k.name, orEnd(ctx, err))
	}
	defer resp.Body.Close()
	return receive(k, resp)
}

// orEnd adds that the time-out of a connection was the end of a context.
func orEnd(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

func sendWithFiles(conn net.Conn, req *http.Request, files []*os.File) error {
	w, ok := conn.(messageWriter)
	if !ok {
		return errors.New("descriptors cannot go over a connection that is no Unix socket")
	}
	var text bytes.Buffer
	if err := req.Write(&text); err != nil {
		return err
	}
	fds := make([]int, 0, len(files))
	for _, f := range files {
		fd, err := numberOf(f)
		if err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	n, _, err := w.WriteMsgUnix(text.Bytes(), syscall.UnixRights(fds...), nil)
	runtime.KeepAlive(files)
	if err != nil {
		return err
	}
	if n == text.Len() {
		return nil
	}
	_, err = io.Copy(conn, bytes.NewReader(text.Bytes()[n:]))
	return err
}

// numberOf returns the descriptor without making it blocking, as File.Fd would for whoever shares it.
func numberOf(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	number := -1
	if err := raw.Control(func(fd uintptr) { number = int(fd) }); err != nil {
		return 0, err
	}
	return number, nil
}
