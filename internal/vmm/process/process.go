// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package process starts, proves, watches and signals the VMM processes that
// must outlive the daemon.
//
// It exists because a bare pid proves nothing: pids are reused, daemons are
// killed between fork and bookkeeping, and a guest must survive both. So every
// process carries a marker in its environment, is identified by pid, kernel
// start time and boot id together, and is held by a pidfd for as long as the
// daemon looks at it.
//
// Two supervisors pass the same suite (processtest.Conformance): Child starts
// detached children of the daemon, Systemd starts transient services with
// their own cgroup. Auto picks one and says why.
//
// The package must never signal by bare pid, never take "could not ask" for
// "is gone", never end a process by itself (Close only stops watching) and
// never tie the life of a process to that of the daemon.
package process

import (
	"context"
	"errors"
	"os"
	"time"
)

// MarkerEnv is the environment variable that carries Spec.Marker into the
// process, where anybody who may read /proc/PID/environ finds it again.
const MarkerEnv = "CHP_VMM_MARKER"

// Kinds of supervisors, as Supervisor.Kind and Options.Kind spell them.
const (
	KindAuto    = "auto"
	KindChild   = "child"
	KindSystemd = "systemd"
)

var (
	// ErrGone says that the process is proven to be over: no such pid, another
	// start time, another boot, or a zombie. Every other error of Adopt means
	// "unknown" and must not be treated as gone.
	ErrGone = errors.New("process is gone")
	// ErrNotOurs says that a process with this pid and start time lives but
	// carries another marker. It must not be touched.
	ErrNotOurs = errors.New("process carries another marker")
	// ErrInvalid says that a Spec or Identity cannot be used as it is.
	ErrInvalid = errors.New("invalid process description")
	// ErrClosed is the answer of a supervisor after Close.
	ErrClosed = errors.New("process supervisor is closed")
)

// Identity is the durable proof of one process; it is kept as JSON in the
// machine's record.
type Identity struct {
	// PID is the process id in the daemon's pid namespace.
	PID int `json:"pid"`
	// StartTicks is field 22 of /proc/PID/stat: clock ticks between boot and
	// the start of the process. Systems without procfs store Unix seconds.
	StartTicks uint64 `json:"startTicks"`
	// BootID is the kernel's random id of this boot.
	BootID string `json:"bootID"`
	// Marker is the value of MarkerEnv in the environment of the process.
	Marker string `json:"marker"`
	// Unit is the transient systemd unit, empty for a child.
	Unit string `json:"unit,omitempty"`
}

// Exit tells how a process ended.
type Exit struct {
	// Known is false when neither the kernel nor systemd would tell: the
	// process was not our child, or its unit was collected before we asked.
	Known bool
	// Code is the exit code, -1 when a signal ended the process or when the
	// end is not known.
	Code int
	// Signal is the name of the signal that ended the process ("SIGKILL"),
	// else empty.
	Signal string
	// At is when the end was noticed.
	At time.Time
}

// Process is one living or ended process. All methods are safe for concurrent
// use.
type Process interface {
	// Identity returns the proof to be stored.
	Identity() Identity
	// Done is closed when the kernel says that the process ended. It stays
	// open for ever when the supervisor is closed first.
	Done() <-chan struct{}
	// Exit tells how the process ended; it is the zero value before Done.
	Exit() Exit
	// Signal sends a signal to exactly this process. It returns
	// os.ErrProcessDone when the process is over and ErrClosed after the
	// supervisor was closed.
	Signal(ctx context.Context, sig os.Signal) error
}

// Supervisor starts processes and finds them again.
type Supervisor interface {
	// Start runs the described process. When it returns an error no process
	// is left behind, except that a context that ends while systemd works may
	// leave one, which Find then reports.
	Start(ctx context.Context, spec Spec) (Process, error)
	// Adopt takes up a process that an earlier daemon started. ErrGone means
	// proven gone, ErrNotOurs that another process carries the pid; any other
	// error means unknown.
	Adopt(ctx context.Context, id Identity) (Process, error)
	// Find returns the living processes that carry exactly this marker. It
	// answers the crash between spawn and record.
	Find(ctx context.Context, marker string) ([]Identity, error)
	// FindAll returns the living processes whose marker starts with prefix,
	// by one scan; for the audit of orphans at start.
	FindAll(ctx context.Context, prefix string) ([]Identity, error)
	// Kind is KindChild or KindSystemd.
	Kind() string
	// Close stops watching and never touches a process.
	Close() error
}
