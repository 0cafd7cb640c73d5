// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const procRoot = "/proc"

// readBootID returns the kernel's random id of this boot.
func readBootID() (string, error) {
	raw, err := os.ReadFile(procRoot + "/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// stat is the part of /proc/PID/stat that identifies a process.
type stat struct {
	state byte
	start uint64
}

// over says that nothing runs any more: a zombie or a task being torn down.
func (s stat) over() bool { return s.state == 'Z' || s.state == 'X' || s.state == 'x' }

func readStat(pid int) (stat, error) {
	raw, err := os.ReadFile(filepath.Join(procRoot, strconv.Itoa(pid), "stat"))
	if err != nil {
		return stat{}, err
	}
	return parseStat(raw)
}

// parseStat reads fields 3 and 22. The command name (field 2) may contain
// blanks and parentheses, so counting starts behind the last parenthesis.
func parseStat(raw []byte) (stat, error) {
	end := bytes.LastIndexByte(raw, ')')
	if end < 0 {
		return stat{}, fmt.Errorf("parse stat %q: no command name", raw)
	}
	fields := strings.Fields(string(raw[end+1:]))
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("parse stat %q: %d fields behind the command name", raw, len(fields))
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("parse start time: %w", err)
	}
	return stat{state: fields[0][0], start: start}, nil
}

// readMarker returns the marker in the environment of a process, "" when it
// carries none.
func readMarker(pid int) (string, error) {
	raw, err := os.ReadFile(filepath.Join(procRoot, strconv.Itoa(pid), "environ"))
	if err != nil {
		return "", err
	}
	prefix := []byte(MarkerEnv + "=")
	for kv := range bytes.SplitSeq(raw, []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, prefix); ok {
			return string(v), nil
		}
	}
	return "", nil
}

// alive says whether the process behind the pidfd still runs. A pidfd becomes
// readable when the last thread ended, zombie or not.
func alive(pidfd int) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("poll pidfd: %w", err)
		}
		return n == 0, nil
	}
}

// openProcess opens a pidfd and reads the identity that belongs to it. The
// order makes it race-free: if the pidfd still lives after the files were
// read, the pid cannot have changed hands between.
func openProcess(pid int, bootID string) (int, Identity, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		// The last two: the number now belongs to a thread, not a process.
		return -1, Identity{}, fmt.Errorf("pid %d: %w", pid, ErrGone)
	case err != nil:
		return -1, Identity{}, fmt.Errorf("open pidfd of %d: %w", pid, err)
	}
	id, err := identify(fd, pid, bootID)
	if err != nil {
		_ = unix.Close(fd)
		return -1, Identity{}, err
	}
	return fd, id, nil
}

func identify(fd, pid int, bootID string) (Identity, error) {
	st, errStat := readStat(pid)
	marker, errMarker := readMarker(pid)
	running, err := alive(fd)
	switch {
	case err != nil:
		return Identity{}, err
	case !running:
		return Identity{}, fmt.Errorf("pid %d: %w", pid, ErrGone)
	case errStat != nil:
		return Identity{}, fmt.Errorf("read stat of %d: %w", pid, errStat)
	case st.over():
		return Identity{}, fmt.Errorf("pid %d is a zombie: %w", pid, ErrGone)
	case errMarker != nil:
		return Identity{}, fmt.Errorf("read environment of %d: %w", pid, errMarker)
	}
	return Identity{PID: pid, StartTicks: st.start, BootID: bootID, Marker: marker}, nil
}

// scan returns the identities of all living processes whose marker matches.
// Processes whose environment may not be read are passed over: they run with
// rights we do not have, so we cannot have started them.
func scan(ctx context.Context, bootID string, match func(string) bool) ([]Identity, error) {
	entries, err := os.ReadDir(procRoot)
	if err != nil {
		return nil, fmt.Errorf("scan processes: %w", err)
	}
	var found []Identity
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("scan processes: %w", err)
		}
		id, err := matching(pid, bootID, match)
		if err != nil {
			return nil, err
		}
		if id != nil {
			found = append(found, *id)
		}
	}
	return found, nil
}

func matching(pid int, bootID string, match func(string) bool) (*Identity, error) {
	marker, err := readMarker(pid)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission), errors.Is(err, unix.ESRCH):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read environment of %d: %w", pid, err)
	case marker == "" || !match(marker):
		return nil, nil
	}
	fd, id, err := openProcess(pid, bootID)
	if errors.Is(err, ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	_ = unix.Close(fd)
	if !match(id.Marker) {
		return nil, nil
	}
	return &id, nil
}
