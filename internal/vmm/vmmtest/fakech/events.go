// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"encoding/json"
	"sync"
	"syscall"
	"time"
)

// monitor writes the event stream: pretty-printed JSON objects, each followed by an empty line.
type monitor struct {
	start time.Time

	mu sync.Mutex
	fd int // -1: nobody listens
}

type eventTime struct {
	Secs  int64 `json:"secs"`
	Nanos int64 `json:"nanos"`
}

type event struct {
	Timestamp  eventTime         `json:"timestamp"`
	Source     string            `json:"source"`
	Event      string            `json:"event"`
	Properties map[string]string `json:"properties"`
}

// newMonitor takes the descriptor over and makes it non-blocking, as the real one does: a slow reader
// loses events, it never stops the machine.
func newMonitor(fd int) *monitor {
	if fd >= 0 {
		_ = syscall.SetNonblock(fd, true)
	}
	return &monitor{start: time.Now(), fd: fd}
}

// emit writes one event; props are alternating keys and values.
func (m *monitor) emit(source, name string, props ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fd < 0 {
		return
	}
	since := time.Since(m.start)
	e := event{
		Timestamp: eventTime{Secs: int64(since / time.Second), Nanos: int64(since % time.Second)},
		Source:    source, Event: name,
	}
	for i := 0; i+1 < len(props); i += 2 {
		if e.Properties == nil {
			e.Properties = map[string]string{}
		}
		e.Properties[props[i]] = props[i+1]
	}
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return
	}
	// Failures are dropped silently, like there.
	_, _ = syscall.Write(m.fd, append(b, '\n', '\n'))
}
