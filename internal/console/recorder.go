// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"
)

// recordBytes is how much goes to the log at once.
const recordBytes = 32 << 10

var recordBuffers = sync.Pool{New: func() any { return new([recordBytes]byte) }}

// recorder writes a feed's output to its log file. Its goroutine and its file are there only while something is to be
// written. All fields are guarded by the feed's lock, but those that say otherwise.
type recorder struct {
	feed     *feed
	path     string
	progress chan struct{} // the recorder got on

	pos     int64         // of the next byte to write
	lost    int64         // bytes overwritten before they were written and not yet told in the log
	running chan struct{} // closed when the goroutine has ended; nil if none runs
	failing bool          // the last write failed
	behind  bool          // patience is used up until everything is written
}

func (r *recorder) init(f *feed, path string) {
	r.feed, r.path, r.progress = f, path, make(chan struct{}, 1)
}

// start makes sure that somebody writes. The lock is held.
func (r *recorder) start() {
	if r.running == nil {
		r.running = make(chan struct{})
		go r.run(r.running)
	}
}

// idle returns a channel that is closed when nothing is being written.
func (r *recorder) idle() <-chan struct{} {
	r.feed.mu.Lock()
	defer r.feed.mu.Unlock()
	if r.running != nil {
		return r.running
	}
	c := make(chan struct{})
	close(c)
	return c
}

// waitForRoom waits for a recorder that is a whole ring behind, so that a guest in a hurry does not outrun a healthy
// disk. It waits LogPatience at most, once until everything is written, and not at all for a failing log.
func (r *recorder) waitForRoom(n int) {
	var patience *time.Timer
	for {
		f := r.feed
		f.mu.Lock()
		wait := f.ring.end+int64(n)-r.pos > int64(f.ring.max) && !r.failing && !r.behind
		if !wait {
			f.mu.Unlock()
			return
		}
		if patience == nil {
			patience = time.NewTimer(LogPatience)
			defer patience.Stop()
		}
		f.mu.Unlock()
		select {
		case <-r.progress:
		case <-patience.C:
			f.mu.Lock()
			r.behind = true
			f.mu.Unlock()
			return
		}
	}
}

// run writes until everything is written, or until the machine is closed and the file cannot be written.
func (r *recorder) run(ended chan struct{}) {
	o := &r.feed.hub.o
	file := logFile{max: o.LogMaxBytes, backups: o.Backups, open: o.openLog}
	defer func() {
		_ = file.close()
		close(ended)
	}()
	buf := recordBuffers.Get().(*[recordBytes]byte)
	defer recordBuffers.Put(buf)
	pause, last := o.retryMin, false
	for {
		path, n, lost, more := r.next(buf[:])
		if !more {
			return
		}
		if path != file.path {
			_ = file.close()
			file.path = path
		}
		if err := r.put(&file, buf[:n], lost); err == nil {
			pause = o.retryMin
			continue
		}
		if last {
			r.giveUp()
			return
		}
		timer := time.NewTimer(pause)
		pause = min(2*pause, o.retryMax)
		select {
		case <-timer.C:
		case <-r.feed.ctx.Done():
			timer.Stop()
			<-r.feed.done
			last = true
		}
	}
}

// next copies what is to be written next into buf. Without more, the caller ends.
func (r *recorder) next(buf []byte) (path string, n int, lost int64, more bool) {
	f := r.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	n, overtaken := f.ring.read(r.pos, buf)
	r.pos += overtaken
	r.lost += overtaken
	f.hub.logLost.Add(overtaken)
	if n == 0 {
		r.running, r.behind = nil, false
	}
	return r.path, n, r.lost, n > 0
}

// put writes what was lost and p, and remembers how far it came.
func (r *recorder) put(file *logFile, p []byte, lost int64) error {
	var err error
	if lost > 0 {
		_, err = file.write([]byte(marker(fmt.Sprintf("%d bytes lost here: the log could not be written", lost))))
	}
	told, written := err == nil, 0
	if told {
		written, err = file.write(p)
	}
	f := r.feed
	f.mu.Lock()
	r.pos += int64(written)
	if told {
		r.lost -= lost
	}
	before := r.failing
	r.failing = err != nil
	f.mu.Unlock()
	poke(r.progress)
	r.report(file.path, before, err)
	return err
}

// report tells of the beginning and the end of trouble, not of each failed write.
func (r *recorder) report(path string, before bool, err error) {
	hub := r.feed.hub
	if err != nil {
		hub.logErrors.Add(1)
	}
	log := hub.o.Logger.With("machine", r.feed.id, "path", path)
	switch {
	case err != nil && !before:
		level := slog.LevelWarn
		if errors.Is(err, fs.ErrNotExist) {
			level = slog.LevelDebug // the machine is being deleted, and its directory went first
		}
		log.Log(r.feed.ctx, level, "console log cannot be written; trying again", "error", err)
	case err == nil && before:
		log.Info("console log is written again")
	}
}

// giveUp counts what a closed machine's log never got.
func (r *recorder) giveUp() {
	f := r.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hub.logLost.Add(f.ring.end - r.pos)
	r.pos = f.ring.end
	r.running = nil
}

// marker is a line of ours in a guest's output. The carriage returns are for terminals in raw mode.
func marker(text string) string { return "\r\n[console: " + text + "]\r\n" }
