// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Escape is the byte of ^], which leaves Interactive.
const Escape = 0x1d

// flushTime is how long a terminal that takes no output can hold up leaving.
const flushTime = 200 * time.Millisecond

// IsTerminal says whether f is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), getTermios)
	return err == nil
}

// Interactive connects a person with an attached console until ^] is typed or the daemon hangs up (both nil), or ctx
// ends (its error). A terminal is put into raw mode meanwhile, so that ^C reaches the guest, and always restored. When
// stdin is no terminal it is sent as it is, ^] included as the end, and at its end the output goes on being shown. It
// closes conn.
func Interactive(ctx context.Context, conn net.Conn, stdin, stdout *os.File) error {
	restore, err := rawMode(stdin)
	if err != nil {
		_ = conn.Close()
		return err
	}
	defer restore()
	wakeReader, wakeWriter, err := os.Pipe()
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("make pipe: %w", err)
	}
	defer func() { _ = wakeReader.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	shown := make(chan error, 1)
	go func() {
		_, err := io.Copy(stdout, conn)
		shown <- err
		_ = wakeWriter.Close() // makes the other side look
	}()
	typing := typeInto(conn, stdin, wakeReader)
	_ = conn.Close()
	var showing error
	select {
	case showing = <-shown:
	case <-time.After(flushTime):
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case typing != nil:
		return typing
	case showing != nil && !errors.Is(showing, net.ErrClosed) && !errors.Is(showing, unix.ECONNRESET):
		return fmt.Errorf("show console: %w", showing)
	}
	return nil
}

// typeInto sends what is typed until ^] or until the wake pipe is closed. It waits with select, which knows terminals
// on every system, so that no read is left behind that would swallow the next key.
func typeInto(conn net.Conn, stdin, wake *os.File) error {
	in, end := int(stdin.Fd()), int(wake.Fd())
	if max(in, end) >= unix.FD_SETSIZE {
		return errors.New("read keyboard: file descriptor is too high")
	}
	buf := make([]byte, 1024)
	for ended := false; ; {
		var ready unix.FdSet
		ready.Set(end)
		if !ended {
			ready.Set(in)
		}
		_, err := unix.Select(max(in, end)+1, &ready, nil, nil, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("wait for keyboard: %w", err)
		case ready.IsSet(end):
			return nil
		}
		n, err := unix.Read(in, buf)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return fmt.Errorf("read keyboard: %w", err)
		case n == 0:
			ended = true
			continue
		}
		typed, _, escaped := bytes.Cut(buf[:n], []byte{Escape})
		if !sent(conn, typed) || escaped {
			return nil
		}
	}
}

// sent says whether p went out. Why a connection broke is told by the one who reads it.
func sent(conn net.Conn, p []byte) bool {
	_, err := conn.Write(p)
	return err == nil
}

// rawMode hands keys over as they are typed. The function it returns undoes it.
func rawMode(f *os.File) (restore func(), err error) {
	if !IsTerminal(f) {
		return func() {}, nil
	}
	fd := int(f.Fd())
	before, err := unix.IoctlGetTermios(fd, getTermios)
	if err != nil {
		return nil, fmt.Errorf("ask terminal for its settings: %w", err)
	}
	raw := *before
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, setTermios, &raw); err != nil {
		return nil, fmt.Errorf("set terminal to raw mode: %w", err)
	}
	return func() { _ = unix.IoctlSetTermios(fd, setTermios, before) }, nil
}
