// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
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
	files  map[string][]*followed // by path
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

// NewFollower starts a follower; Close ends it. The logger may be nil.
func NewFollower(log *slog.Logger) (*Follower, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch event files: %w", err)
	}
	f := &Follower{watcher: watcher, log: log, stopped: make(chan struct{}), files: map[string][]*followed{}}
	go f.run()
	return f, nil
}

// Follow calls sink with the events that are written to the file from now on. The sink runs on the goroutine that
// serves all files; it must neither block nor call stop. Stop ends it; after its return sink is not called again.
// A file may have several followers.
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
	if f.closed {
		return fsnotify.ErrClosed
	}
	// Also when the path is watched: it may have become another file meanwhile.
	if err := f.watcher.Add(e.path); err != nil {
		return err
	}
	f.files[e.path] = append(f.files[e.path], e)
	return nil
}

func (f *Follower) remove(e *followed) {
	f.mu.Lock()
	if i := slices.Index(f.files[e.path], e); i >= 0 {
		f.files[e.path] = slices.Delete(slices.Clone(f.files[e.path]), i, i+1)
	}
	if left, known := f.files[e.path]; known && len(left) == 0 {
		delete(f.files, e.path)
		// The watch is gone already when the file is.
		_ = f.watcher.Remove(e.path)
	}
	f.mu.Unlock()
	e.close()
}

func (e *followed) close() {
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
	all := f.all()
	f.files = map[string][]*followed{}
	f.mu.Unlock()
	err := f.watcher.Close()
	<-f.stopped
	for _, e := range all {
		e.close()
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
			files := f.files[event.Name]
			f.mu.Unlock()
			for _, e := range files {
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
	all := f.all()
	f.mu.Unlock()
	for _, e := range all {
		e.read(buffer, f.log)
	}
}

// all needs mu.
func (f *Follower) all() []*followed {
	var all []*followed
	for _, files := range f.files {
		all = append(all, files...)
	}
	return all
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
