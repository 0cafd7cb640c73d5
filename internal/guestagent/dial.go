// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

const (
	// VsockPort is where the agent of a guest on Cloud Hypervisor listens, by this provider's convention: the first
	// port that needs no privilege.
	VsockPort = 1024
	// maxHandshake is more than the longest answer, "OK 4294967295\n".
	maxHandshake = 32
	// dialTimeout bounds dialling for a caller whose context does not. A guest without a vsock driver leaves a
	// connection open and silent.
	dialTimeout = 5 * time.Second
)

// DialUnix connects to the Unix socket of a virtio-serial port. That it succeeds says nothing about the guest: the
// socket belongs to the VMM, which serves one client after the other. Errors are machine.Unavailable.
func DialUnix(ctx context.Context, path string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, machine.Wrap(machine.Unavailable, err, "connect to guest agent")
	}
	return conn, nil
}

// DialVsock connects to a port inside the guest through the Unix socket of a hybrid vsock device, as Cloud Hypervisor
// and Firecracker have it: "CONNECT <port>" is answered with "OK <port of the host's side>". A port on which nobody
// listens ends the connection without an answer. Errors are machine.Unavailable.
func DialVsock(ctx context.Context, path string, port uint32) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := DialUnix(ctx, path)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = handshake(conn, port)
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		_ = conn.Close()
		return nil, machine.Wrap(machine.Unavailable, err, fmt.Sprintf("connect to vsock port %d of the guest", port))
	}
	return conn, nil
}

func handshake(conn io.ReadWriter, port uint32) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %d\n", port); err != nil {
		return err
	}
	// One byte at a time: what follows the line is the guest's.
	line := make([]byte, 0, maxHandshake)
	for len(line) < maxHandshake {
		next := line[len(line) : len(line)+1]
		if _, err := io.ReadFull(conn, next); err != nil {
			if errors.Is(err, io.EOF) {
				return fmt.Errorf("nobody listens there: %w", err)
			}
			return err
		}
		if next[0] != '\n' {
			line = line[:len(line)+1]
			continue
		}
		number, ok := strings.CutPrefix(string(line), "OK ")
		if _, err := strconv.ParseUint(number, 10, 32); !ok || err != nil {
			return fmt.Errorf("%w: the answer to CONNECT is %q", ErrProtocol, line)
		}
		return nil
	}
	return fmt.Errorf("%w: the answer to CONNECT has more than %d bytes", ErrProtocol, maxHandshake)
}
