// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// proc is one watched process. The pidfd is open exactly as long as the
// process is watched and not over.
type proc struct {
	id   Identity
	done chan struct{}
	// outcome asks how the process ended, once the pidfd says that it did. It
	// reports false when it must not be answered on the watcher's goroutine
	// and blocks when wait is set.
	outcome func(fd int, wait bool) (Exit, bool)

	mu     sync.Mutex
	fd     int // -1 when over or when the supervisor is closed
	isOver bool
	exit   Exit
}

var _ Process = (*proc)(nil)

func (p *proc) Identity() Identity    { return p.id }
func (p *proc) Done() <-chan struct{} { return p.done }

func (p *proc) Exit() Exit {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

func (p *proc) Signal(ctx context.Context, sig os.Signal) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	num, ok := sig.(syscall.Signal)
	if !ok {
		return fmt.Errorf("%w: signal %v", ErrInvalid, sig)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isOver {
		return os.ErrProcessDone
	}
	if p.fd < 0 {
		return ErrClosed
	}
	// A zombie accepts signals silently; the caller must hear that it is over.
	running, err := alive(p.fd)
	if err != nil {
		return err
	}
	if !running {
		return os.ErrProcessDone
	}
	err = unix.PidfdSendSignal(p.fd, num, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	if err != nil {
		return fmt.Errorf("send %s to pid %d: %w", unix.SignalName(num), p.id.PID, err)
	}
	return nil
}

// end records how the process ended and gives the pidfd back.
func (p *proc) end(exit Exit) {
	p.mu.Lock()
	if p.isOver {
		p.mu.Unlock()
		return
	}
	p.exit, p.isOver = exit, true
	p.release()
	p.mu.Unlock()
	close(p.done)
}

// release closes the pidfd; p.mu is held.
func (p *proc) release() {
	if p.fd >= 0 {
		_ = unix.Close(p.fd)
		p.fd = -1
	}
}

// watcher waits for all pidfds on one goroutine.
type watcher struct {
	epfd, wake int
	now        func() time.Time
	stopped    chan struct{}
	pending    sync.WaitGroup // outcomes asked off the watcher's goroutine

	mu     sync.Mutex
	byFD   map[int]*proc
	byPID  map[int]*proc // living ones; a pid is unique while its process lives
	closed bool
}

func newWatcher(now func() time.Time) (*watcher, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epfd)
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	w := &watcher{
		epfd: epfd, wake: wake, now: now, stopped: make(chan struct{}),
		byFD: map[int]*proc{}, byPID: map[int]*proc{},
	}
	if err := w.ctl(unix.EPOLL_CTL_ADD, wake); err != nil {
		_, _ = unix.Close(epfd), unix.Close(wake)
		return nil, err
	}
	go w.run()
	return w, nil
}

func (w *watcher) ctl(op, fd int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(w.epfd, op, fd, &ev); err != nil {
		return fmt.Errorf("watch descriptor: %w", err)
	}
	return nil
}

func (w *watcher) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// known returns the watched process with this identity, if any.
func (w *watcher) known(id Identity) *proc {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.byPID[id.PID]
	if p == nil || p.id.StartTicks != id.StartTicks || p.id.BootID != id.BootID {
		return nil
	}
	return p
}

// add takes over fd on success. A process that is watched already is
// returned instead, and fd closed: only one watcher can learn the exit code.
func (w *watcher) add(fd int, id Identity, outcome func(int, bool) (Exit, bool)) (*proc, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, ErrClosed
	}
	if p := w.byPID[id.PID]; p != nil && p.id.StartTicks == id.StartTicks {
		_ = unix.Close(fd)
		return p, nil
	}
	if err := w.ctl(unix.EPOLL_CTL_ADD, fd); err != nil {
		return nil, err
	}
	p := &proc{id: id, fd: fd, done: make(chan struct{}), outcome: outcome}
	w.byFD[fd], w.byPID[id.PID] = p, p
	return p, nil
}

func (w *watcher) run() {
	defer close(w.stopped)
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.epfd, events, -1)
		if err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return
		}
		for _, ev := range events[:n] {
			if int(ev.Fd) == w.wake {
				return
			}
			w.ended(int(ev.Fd))
		}
	}
}

// ended handles a readable pidfd.
func (w *watcher) ended(fd int) {
	w.mu.Lock()
	p := w.byFD[fd]
	if p == nil || w.closed {
		w.mu.Unlock()
		return
	}
	_ = w.ctl(unix.EPOLL_CTL_DEL, fd)
	delete(w.byFD, fd)
	w.pending.Add(1)
	w.mu.Unlock()

	if exit, ok := p.outcome(fd, false); ok {
		w.finish(p, exit)
		return
	}
	go func() {
		exit, _ := p.outcome(fd, true)
		w.finish(p, exit)
	}()
}

func (w *watcher) finish(p *proc, exit Exit) {
	defer w.pending.Done()
	w.mu.Lock()
	if w.byPID[p.id.PID] == p {
		delete(w.byPID, p.id.PID)
	}
	w.mu.Unlock()
	exit.At = w.now()
	p.end(exit)
}

// close stops watching. Processes stay as they are; their Done never closes.
func (w *watcher) close() {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		<-w.stopped
		return
	}
	w.closed = true
	w.mu.Unlock()
	_, _ = unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-w.stopped
	w.pending.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.byFD {
		p.mu.Lock()
		p.release()
		p.mu.Unlock()
	}
	clear(w.byFD)
	clear(w.byPID)
	_, _ = unix.Close(w.epfd), unix.Close(w.wake)
}

// reap collects the exit status of our own child by its pidfd. For a process
// that is not our child the kernel says ECHILD and the end stays unknown.
func reap(fd int, wait bool) (Exit, bool) {
	unknown := Exit{Code: -1}
	flags := unix.WEXITED
	if !wait {
		flags |= unix.WNOHANG
	}
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PIDFD, fd, &info, flags, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return unknown, true
		case info.Signo == 0:
			// Ended, but a tracer has not let go of it yet.
			return unknown, false
		}
		return decode(info.Code, siginfoStatus(&info)), true
	}
}

// siginfoStatus reads si_status, which x/sys does not name. In the kernel's
// layout the SIGCHLD part (pid, uid, status) starts behind three ints,
// aligned like a pointer.
func siginfoStatus(info *unix.Siginfo) int32 {
	const ints = 3 * 4
	const align = unsafe.Sizeof(uintptr(0))
	const union = (ints + align - 1) / align * align
	return *(*int32)(unsafe.Add(unsafe.Pointer(info), union+8))
}

// Values of si_code for SIGCHLD (sigaction(2)); systemd's ExecMainCode uses
// the same ones.
const (
	cldExited = 1
	cldKilled = 2
	cldDumped = 3
)

func decode(code, status int32) Exit {
	switch code {
	case cldExited:
		return Exit{Known: true, Code: int(status)}
	case cldKilled, cldDumped:
		return Exit{Known: true, Code: -1, Signal: unix.SignalName(syscall.Signal(status))}
	}
	return Exit{Code: -1}
}
