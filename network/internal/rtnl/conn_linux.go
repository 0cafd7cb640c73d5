// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds the kernel's answer to one message.
const patience = 5 * time.Second

const nlaTypeMask = 1<<14 - 1 // without NLA_F_NESTED and NLA_F_NET_BYTEORDER

func open(protocol int, groups uint32) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, fmt.Errorf("open netlink socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("bind netlink socket: %w", err)
	}
	return fd, nil
}

// request sends one message and returns the payloads of the answers. An error of the kernel is a syscall.Errno, with
// the kernel's own words where it has some.
func request(ctx context.Context, kind, flags int, payload []byte) ([][]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fd, err := open(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	wait := unix.NsecToTimeval(int64(patience))
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	message := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(payload))
	binary.NativeEndian.PutUint32(message, uint32(unix.NLMSG_HDRLEN+len(payload)))
	binary.NativeEndian.PutUint16(message[4:], uint16(kind))
	binary.NativeEndian.PutUint16(message[6:], uint16(flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK))
	binary.NativeEndian.PutUint32(message[8:], 1)
	message = append(message, payload...)
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("send netlink message: %w", err)
	}
	return answers(fd)
}

func answers(fd int) ([][]byte, error) {
	var out [][]byte
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("receive netlink message: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(append([]byte(nil), buf[:n]...))
		if err != nil {
			return nil, fmt.Errorf("parse netlink message: %w", err)
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return out, nil
			case unix.NLMSG_ERROR:
				return out, failure(m)
			default:
				out = append(out, m.Data)
			}
		}
	}
}

// failure reads an acknowledgement: an errno (0 = done), the header of what was asked, then attributes.
func failure(m syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		return errors.New("the kernel's answer is too short")
	}
	errno := syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
	if errno == 0 {
		return nil
	}
	const head = 4 + unix.NLMSG_HDRLEN
	if m.Header.Flags&unix.NLM_F_ACK_TLVS != 0 && len(m.Data) > head {
		for _, a := range attributes(m.Data[head:]) {
			if a.kind == unix.NLMSGERR_ATTR_MSG {
				return fmt.Errorf("%w (%s)", errno, text(a.value))
			}
		}
	}
	return errno
}

type attribute struct {
	kind  int
	value []byte
}

// attributes takes a row of attributes apart; what is cut off is left out.
func attributes(b []byte) []attribute {
	var out []attribute
	for len(b) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofNlAttr || length > len(b) {
			return out
		}
		kind := int(binary.NativeEndian.Uint16(b[2:])) & nlaTypeMask
		out = append(out, attribute{kind, b[unix.SizeofNlAttr:length]})
		b = b[min(align(length), len(b)):]
	}
	return out
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

func attr(kind int, value []byte) []byte {
	out := make([]byte, align(unix.SizeofNlAttr+len(value)))
	binary.NativeEndian.PutUint16(out, uint16(unix.SizeofNlAttr+len(value)))
	binary.NativeEndian.PutUint16(out[2:], uint16(kind))
	copy(out[unix.SizeofNlAttr:], value)
	return out
}

func nested(kind int, inside ...[]byte) []byte {
	var all []byte
	for _, b := range inside {
		all = append(all, b...)
	}
	return attr(kind|unix.NLA_F_NESTED, all)
}

func number(n int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }

func zeroEnded(s string) []byte { return append([]byte(s), 0) }

func flagByte(b bool) []byte {
	if b {
		return []byte{1}
	}
	return []byte{0}
}

func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// value reads an unsigned integer of any usual size.
func value(b []byte) int {
	switch len(b) {
	case 1:
		return int(b[0])
	case 2:
		return int(binary.NativeEndian.Uint16(b))
	case 4:
		return int(binary.NativeEndian.Uint32(b))
	default:
		return 0
	}
}
