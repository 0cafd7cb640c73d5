// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Storage is what the file system below a directory can do. Everything was tried with a temporary file of 64 KiB.
type Storage struct {
	Path       string `json:"path"`   // as asked
	Probed     string `json:"probed"` // Path, or its nearest parent that exists
	Filesystem string `json:"filesystem"`
	TotalBytes uint64 `json:"totalBytes"`
	FreeBytes  uint64 `json:"freeBytes"` // for processes without privileges
	FreeFiles  uint64 `json:"freeFiles"` // inodes; 0 where the file system has no such limit
	Reflink    Trial  `json:"reflink"`   // a file can share the blocks of another
	DirectIO   Trial  `json:"directIO"`  // O_DIRECT works
	Fsync      Trial  `json:"fsync"`     // file and directory can be made durable
}

// Trial is the outcome of something tried.
type Trial struct {
	OK     bool          `json:"ok"`
	Reason string        `json:"reason,omitempty"` // why not
	Took   time.Duration `json:"took"`
}

const trialSize = 64 << 10

// ProbeStorage tries what the file system below dir can do. A directory that does not exist yet is judged by its
// nearest existing parent. It writes one or two temporary files and removes them. It returns at the deadline of ctx
// even if the file system hangs; the blocked attempt is left behind then, as nothing can end it.
func ProbeStorage(ctx context.Context, dir string) (Storage, error) {
	type answer struct {
		storage Storage
		err     error
	}
	if ctx.Err() != nil {
		return Storage{}, fmt.Errorf("probe the file system of %s: %w", dir, context.Cause(ctx))
	}
	done := make(chan answer, 1)
	go func() {
		s, err := probeStorage(dir)
		done <- answer{s, err}
	}()
	select {
	case a := <-done:
		return a.storage, a.err
	case <-ctx.Done():
		return Storage{}, fmt.Errorf("probe the file system of %s: no answer: %w", dir, context.Cause(ctx))
	}
}

func probeStorage(dir string) (s Storage, err error) {
	s.Path = dir
	if s.Probed, err = existingParent(dir); err != nil {
		return s, fmt.Errorf("find directory: %w", err)
	}
	if err := platformStatfs(&s); err != nil {
		return s, fmt.Errorf("ask for the free space of %s: %w", s.Probed, err)
	}
	file, err := os.CreateTemp(s.Probed, ".probe-*")
	if err != nil {
		return s, fmt.Errorf("write into %s: %w", s.Probed, err)
	}
	defer func() { _ = os.Remove(file.Name()) }()
	defer file.Close()
	if _, err := file.Write(make([]byte, trialSize)); err != nil {
		return s, fmt.Errorf("write into %s: %w", s.Probed, err)
	}
	s.Fsync = try(func() error { return syncAll(file, s.Probed) })
	s.Reflink = try(func() error { return tryReflink(file) })
	s.DirectIO = try(func() error { return tryDirect(file.Name()) })
	return s, nil
}

func try(what func() error) Trial {
	begin := time.Now()
	err := what()
	t := Trial{OK: err == nil, Took: time.Since(begin)}
	if err != nil {
		t.Reason = err.Error()
	}
	return t
}

func existingParent(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		info, err := os.Stat(dir)
		switch {
		case err == nil && info.IsDir():
			return dir, nil
		case err == nil:
			return "", fmt.Errorf("%s is not a directory", dir)
		case !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir):
			return "", err
		}
		dir = filepath.Dir(dir)
	}
}

func syncAll(file *os.File, dir string) error {
	if err := file.Sync(); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func tryReflink(from *os.File) error {
	to, err := os.CreateTemp(filepath.Dir(from.Name()), ".probe-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(to.Name()) }()
	defer to.Close()
	return platformClone(from, to)
}

// SocketPathRoom returns how many bytes a file name below dir may have so that a Unix socket can be bound there: the
// kernel takes 107 bytes for the whole path on Linux, 103 on macOS. 0 or less means that there is no room at all.
func SocketPathRoom(dir string) int { return socketPathMax - len(filepath.Clean(dir)) - 1 }

// CheckSocketPath returns an error if a Unix socket cannot be bound at path because the path is too long.
func CheckSocketPath(path string) error {
	if over := len(path) - socketPathMax; over > 0 {
		return fmt.Errorf("socket path %s has %d bytes, the kernel takes %d: shorten it by %d",
			path, len(path), socketPathMax, over)
	}
	return nil
}
