// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// logMode lets the group of the state directory read along.
const logMode = 0o640

// sink is an open log file.
type sink interface {
	io.WriteCloser
	Stat() (fs.FileInfo, error)
}

// openSink opens a log file for appending. It makes no directory: a machine's directory that is gone was deleted.
func openSink(path string) (sink, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, logMode)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// logFile appends to a file of at most max bytes and keeps backups older ones as path.1 (the youngest), path.2 and so
// on. It opens the file when it is written to.
type logFile struct {
	path    string
	max     int64
	backups int
	open    func(path string) (sink, error)

	file sink
	size int64
}

// write appends p, in several files if it must, and returns how much of it is written. After an error the file is
// closed, and the next write opens it anew.
func (l *logFile) write(p []byte) (written int, err error) {
	defer func() {
		if err != nil {
			_ = l.close()
		}
	}()
	for written < len(p) {
		if err := l.ready(); err != nil {
			return written, err
		}
		part := l.fitting(p[written:])
		if len(part) == 0 {
			if err := l.rotate(); err != nil {
				return written, err
			}
			continue
		}
		n, err := l.file.Write(part)
		written += n
		l.size += int64(n)
		if err != nil {
			return written, fmt.Errorf("write console log: %w", err)
		}
	}
	return written, nil
}

func (l *logFile) ready() error {
	if l.file != nil {
		return nil
	}
	f, err := l.open(l.path)
	if err != nil {
		return fmt.Errorf("open console log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("look at console log: %w", err)
	}
	l.file, l.size = f, info.Size()
	return nil
}

// fitting is the part of p that still goes into the file, whole lines if p has any; empty if the file is full.
func (l *logFile) fitting(p []byte) []byte {
	room := l.max - l.size
	switch {
	case int64(len(p)) <= room:
		return p
	case room <= 0:
		return nil
	}
	if cut := bytes.LastIndexByte(p[:room], '\n') + 1; cut > 0 || l.size > 0 {
		return p[:cut]
	}
	return p[:room]
}

// rotate sets the full file aside. The oldest one goes.
func (l *logFile) rotate() error {
	if err := l.close(); err != nil {
		return fmt.Errorf("close full console log: %w", err)
	}
	if l.backups == 0 {
		return ignoreMissing(os.Remove(l.path), "remove full console log")
	}
	for i := l.backups - 1; i >= 0; i-- {
		if err := ignoreMissing(os.Rename(l.backup(i), l.backup(i+1)), "set full console log aside"); err != nil {
			return err
		}
	}
	return nil
}

// backup is the name of the i-th file; the 0th is the one written to.
func (l *logFile) backup(i int) string {
	if i == 0 {
		return l.path
	}
	return fmt.Sprintf("%s.%d", l.path, i)
}

func (l *logFile) close() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file, l.size = nil, 0
	return err
}

func ignoreMissing(err error, doing string) error {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// history returns up to n bytes from the end of the log as it was; nothing if that file has been set aside since. It is
// for showing only, so errors mean nothing to show.
func history(path string, was fs.FileInfo, n int) []byte {
	if was == nil {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	if now, err := f.Stat(); err != nil || !os.SameFile(was, now) {
		return nil
	}
	out := make([]byte, min(int64(n), was.Size()))
	if got, err := f.ReadAt(out, was.Size()-int64(len(out))); got < len(out) && err != nil {
		return nil
	}
	return out
}
