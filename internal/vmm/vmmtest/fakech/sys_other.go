// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package fakech

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// Outside Linux the fake has no OFD locks, no ptys, no resets on request and no look at half-closed
// connections; everything else works, which is enough for the logic of a driver.

const directFlag = 0

func lockRange(*os.File, bool, int64) (busy bool, err error) { return false, nil }

func rustErrno(no syscall.Errno) string { return fmt.Sprintf("%s (os error %d)", no.Error(), int(no)) }

func hungUp(*net.UnixConn) bool { return false }

func peekBytes(*net.UnixConn, []byte) int { return 0 }

func tapName(int) error { return nil }

func dupFD(fd int) (int, error) { return syscall.Dup(fd) }

func resetSignal(syscall.Signal) {}

type pty struct{ path string }

func openPTY() (*pty, error) { return nil, errors.New("no pseudo terminals on this system") }

func (*pty) close() {}

func (*pty) poll(time.Duration) (readable, hungUp bool) { return false, true }

func (*pty) read([]byte) int { return 0 }

func (*pty) write(b []byte) int { return len(b) }

func alignedBlock() []byte { return make([]byte, 4096) }
