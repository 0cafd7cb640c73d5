// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// userTick is the unit of times in /proc: USER_HZ is 100 on every architecture (proc_pid_stat(5)).
const userTick = time.Second / 100

// Fields of /proc/PID/stat behind the command name, counted from 0 (proc_pid_stat(5) counts from 3).
const (
	fieldUserTime   = 11
	fieldSystemTime = 12
	fieldStart      = 19
	fieldResident   = 21
)

// statSize holds more than 52 numbers of 20 digits and a name of 64 bytes.
const statSize = 2048

var errOther = errors.New("another process has the number")

// newProcessReader reads /proc. A process is the one that is meant if it was started in the same boot at the same
// tick.
func newProcessReader() func(machine.ProcessIdentity) (Process, error) {
	boot := sync.OnceValue(func() string {
		raw, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it, nothing is told
		return strings.TrimSpace(string(raw))
	})
	page := uint64(os.Getpagesize())
	buffers := sync.Pool{New: func() any { return new([statSize]byte) }}
	return func(id machine.ProcessIdentity) (Process, error) {
		if id.BootID != boot() {
			return Process{}, errOther
		}
		buffer, _ := buffers.Get().(*[statSize]byte)
		defer buffers.Put(buffer)
		raw, err := readOnce("/proc/"+strconv.Itoa(id.PID)+"/stat", buffer[:])
		if err != nil {
			return Process{}, err
		}
		fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:]) // the name may hold blanks and parentheses
		if len(fields) <= fieldResident {
			return Process{}, fmt.Errorf("/proc/%d/stat has %d fields", id.PID, len(fields))
		}
		var n [4]uint64
		for i, field := range []int{fieldUserTime, fieldSystemTime, fieldStart, fieldResident} {
			if n[i], err = strconv.ParseUint(string(fields[field]), 10, 64); err != nil {
				return Process{}, fmt.Errorf("parse /proc/%d/stat: %w", id.PID, err)
			}
		}
		if n[2] != id.StartTicks {
			return Process{}, errOther
		}
		return Process{CPU: time.Duration(n[0]+n[1]) * userTick, ResidentBytes: n[3] * page}, nil
	}
}

// readOnce reads a small file of /proc, which comes in one piece. It is asked for hundreds of times a scrape, and os.File
// costs more than the reading.
func readOnce(path string, into []byte) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	n, err := unix.Read(fd, into)
	if err != nil {
		return nil, err
	}
	return into[:n], nil
}

// allocated is what a file takes on disk: images have holes.
func allocated(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}
