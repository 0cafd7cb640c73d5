// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/fsnotify/fsnotify"
)

const (
	// readChunk is the size of the one buffer that all files are read through.
	readChunk = 32 << 10
	// reclaimAfter is how much is read of a file before its blocks are given back, so that a guest that restarts
	// itself all day does not fill the file system of the runtime directories, which is memory.
	reclaimAfter = 256 << 10
)

// Batch is what was read of an event file at once.
type Batch struct {
	Events []Event
	Lost   bool // events are missing before or among these: the file was truncated or unreadable
}

// Follower reads event files as they grow: one inotify instance and one goroutine for all of them.
type Follower struct {
	watcher *fsnotify.Watcher
	log     *slog.Logger
	stopped chan struct{}

	mu     sync.Mutex
	files  map[string]*followed // by path
	closed bool
}

// followed is an event file. Its fields but for path are used by one goroutine at a time, which holds mu.
type followed struct {
	path string
	sink func(Batch)

	mu        sync.Mutex
	file      *os.File // nil once unfollowed
	offset    int64
	reclaimed int64
	decoder   Decoder
}

// ErrFollowed means that an event file has a follower already.
var ErrFollowed = errors.New("the event file is followed already")

// NewFollower starts a follower; Close ends it. The logger may be nil.
func NewFollower(log *slog.Logger) (*Follower, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch event files: %w", err)
	}
	f := &Follower{watcher: watcher, log: log, stopped: make(chan struct{}), files: map[string]*followed{}}
	go f.run()
	return f, nil
}

// Follow calls sink with the events that are written to the file from now on. The sink runs on the goroutine that
// serves all files and must not block. The function returned ends it; after its return sink is not called again.
func (f *Follower) Follow(path string, sink func(Batch)) (stop func(), err error) {
	file, err := openEventFile(path)
	if err != nil {
		return nil, fmt.Errorf("follow events: %w", err)
	}
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("follow events: %w", err)
	}
	e := &followed{path: path, sink: sink, file: file, offset: end, reclaimed: end}
	if err := f.add(e); err != nil {
		file.Close()
		return nil, fmt.Errorf("follow events of %s: %w", path, err)
	}
	// What was written before the watch began is not announced.
	e.read(make([]byte, readChunk), f.log)
	return func() { f.remove(e) }, nil
}

func (f *Follower) add(e *followed) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return fsnotify.ErrClosed
	case f.files[e.path] != nil:
		return ErrFollowed
	}
	if err := f.watcher.Add(e.path); err != nil {
		return err
	}
	f.files[e.path] = e
	return nil
}

func (f *Follower) remove(e *followed) {
	f.mu.Lock()
	if f.files[e.path] == e {
		delete(f.files, e.path)
		// The watch is gone already when the file is.
		_ = f.watcher.Remove(e.path)
	}
	f.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.file != nil {
		e.file.Close()
		e.file = nil
	}
}

// Close ends all following.
func (f *Follower) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	files := f.files
	f.files = map[string]*followed{}
	f.mu.Unlock()
	err := f.watcher.Close()
	<-f.stopped
	for _, e := range files {
		f.remove(e)
	}
	return err
}

func (f *Follower) run() {
	defer close(f.stopped)
	buffer := make([]byte, readChunk)
	for {
		select {
		case event, ok := <-f.watcher.Events:
			if !ok {
				return
			}
			if !event.Has(fsnotify.Write) {
				continue
			}
			f.mu.Lock()
			e := f.files[event.Name]
			f.mu.Unlock()
			if e != nil {
				e.read(buffer, f.log)
			}
		case err, ok := <-f.watcher.Errors:
			if !ok {
				return
			}
			// An overflow of the kernel's queue says nothing of which files were written.
			f.log.Warn("watch event files", "error", err)
			f.readAll(buffer)
		}
	}
}

func (f *Follower) readAll(buffer []byte) {
	f.mu.Lock()
	all := make([]*followed, 0, len(f.files))
	for _, e := range f.files {
		all = append(all, e)
	}
	f.mu.Unlock()
	for _, e := range all {
		e.read(buffer, f.log)
	}
}

// read hands what is new to the sink.
func (e *followed) read(buffer []byte, log *slog.Logger) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.file == nil {
		return
	}
	var batch Batch
	info, err := e.file.Stat()
	if err == nil && info.Size() < e.offset {
		// A VMM that starts truncates its event file.
		e.offset, e.reclaimed = 0, 0
		e.decoder.Reset()
		batch.Lost = true
	}
	for {
		n, err := e.file.ReadAt(buffer, e.offset)
		e.offset += int64(n)
		events, lost := e.decoder.Feed(buffer[:n])
		batch.Events = append(batch.Events, events...)
		batch.Lost = batch.Lost || lost
		if err != nil {
			if !errors.Is(err, io.EOF) {
				log.Warn("read event file", "path", e.path, "error", err)
				batch.Lost = true
			}
			break
		}
	}
	if e.offset-e.reclaimed >= reclaimAfter && reclaim(e.file, e.offset) == nil {
		e.reclaimed = e.offset
	}
	if len(batch.Events) > 0 || batch.Lost {
		e.sink(batch)
	}
}
