// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const directFlag = unix.O_DIRECT

// lockRange takes an OFD lock from 0 over length bytes, 0 meaning the whole file, without waiting.
func lockRange(f *os.File, write bool, length int64) (busy bool, err error) {
	kind := int16(unix.F_RDLCK)
	if write {
		kind = unix.F_WRLCK
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Len: length})
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES), err
}

// rustErrno renders an errno as Rust's io::Error does, with the C library's capital letter.
func rustErrno(no syscall.Errno) string {
	text := no.Error()
	return fmt.Sprintf("%s%s (os error %d)", string(text[0]-'a'+'A'), text[1:], int(no))
}

// hungUp reports whether the peer closed at least its writing side.
func hungUp(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	if err := raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	}); err != nil {
		return true
	}
	return gone
}

// peekBytes waits for data and returns how much of it there is in buf, leaving it unread.
func peekBytes(c *net.UnixConn, buf []byte) int {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	if err := raw.Read(func(fd uintptr) bool {
		got, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_PEEK)
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		n = max(got, 0)
		return true
	}); err != nil {
		return 0
	}
	return n
}

// tapName asks a tap for its name and fails on anything else.
func tapName(fd int) error {
	var ifreq [40]byte
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNGETIFF, uintptr(unsafe.Pointer(&ifreq))); no != 0 {
		return no
	}
	return nil
}

// dupFD copies a descriptor.
func dupFD(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3) }

// resetSignal gives a signal its default action back, which the Go runtime took.
func resetSignal(sig syscall.Signal) {
	var action [32]byte // struct sigaction of zeros: SIG_DFL
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}

// pty is the controlling end of a pseudo terminal.
type pty struct {
	fd   int
	path string
}

// openPTY makes a pseudo terminal in raw mode, with its other end closed again.
func openPTY() (*pty, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	p := &pty{fd: fd}
	if err := p.unlock(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *pty) unlock() error {
	n, err := unix.IoctlGetInt(p.fd, unix.TIOCGPTN)
	if err != nil {
		return err
	}
	if err := unix.IoctlSetPointerInt(p.fd, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	p.path = fmt.Sprintf("/dev/pts/%d", n)
	sub, err := unix.Open(p.path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(sub) }()
	t, err := unix.IoctlGetTermios(sub, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	return unix.IoctlSetTermios(sub, unix.TCSETS, t)
}

func (p *pty) close() { _ = unix.Close(p.fd) }

// poll waits for input; hungUp says that nobody has the other end open.
func (p *pty) poll(wait time.Duration) (readable, hungUp bool) {
	set := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(set, int(wait.Milliseconds())); err != nil {
		return false, false
	}
	return set[0].Revents&unix.POLLIN != 0, set[0].Revents&unix.POLLHUP != 0
}

func (p *pty) read(b []byte) int {
	n, _ := unix.Read(p.fd, b)
	return n
}

func (p *pty) write(b []byte) int {
	n, err := unix.Write(p.fd, b)
	if err != nil {
		return 0
	}
	return n
}

// alignedBlock is a page that O_DIRECT reads can go to.
func alignedBlock() []byte {
	raw := make([]byte, 2*4096)
	off := int(-uintptr(unsafe.Pointer(&raw[0])) & 4095)
	return raw[off : off+4096]
}
