// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Child starts detached children of the daemon: own session, no pipe, no
// parent-death signal, so that nothing that happens to the daemon reaches
// them. They stay in the daemon's cgroup; under a service manager the daemon's
// unit therefore needs KillMode=process.
type Child struct {
	bootID string
	log    *slog.Logger
	w      *watcher
}

var _ Supervisor = (*Child)(nil)

// NewChild returns a supervisor of detached children.
func NewChild(opts Options) (*Child, error) {
	opts = opts.withDefaults()
	bootID, err := readBootID()
	if err != nil {
		return nil, err
	}
	w, err := newWatcher(opts.Now)
	if err != nil {
		return nil, err
	}
	return &Child{bootID: bootID, log: opts.Logger, w: w}, nil
}

// Kind is KindChild.
func (c *Child) Kind() string { return KindChild }

// Close stops watching; the processes go on.
func (c *Child) Close() error {
	c.w.close()
	return nil
}

// Start runs the process; see Supervisor.
func (c *Child) Start(ctx context.Context, spec Spec) (Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if c.w.isClosed() {
		return nil, ErrClosed
	}
	pid, fd, err := spawn(spec)
	if err != nil {
		return nil, err
	}
	p, err := c.hold(pid, fd, spec)
	if err != nil {
		// Nothing may live that the caller does not know of.
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		_, _ = reap(fd, true)
		_ = unix.Close(fd)
		return nil, fmt.Errorf("take up %s: %w", spec.Name, err)
	}
	return p, nil
}

// hold reads the identity of a fresh child and watches it. The child is not
// reaped before the watcher has it, so its pid cannot change hands; a child
// that ended already still has its stat entry as a zombie.
func (c *Child) hold(pid, fd int, spec Spec) (*proc, error) {
	st, err := readStat(pid)
	if err != nil {
		return nil, fmt.Errorf("read stat of %d: %w", pid, err)
	}
	c.neutralise(pid, spec)
	id := Identity{PID: pid, StartTicks: st.start, BootID: c.bootID, Marker: spec.Marker}
	return c.w.add(fd, id, reap)
}

// neutralise takes back what a child inherits from a daemon with special
// treatment. It runs just after the start: a VMM opens its files later, and
// the kernel looks at both values only when they matter.
func (c *Child) neutralise(pid int, spec Spec) {
	self, err := os.ReadFile(procRoot + "/self/oom_score_adj")
	if err == nil && strings.HasPrefix(string(self), "-") {
		// A daemon shielded from the OOM killer must not shield its guests.
		path := filepath.Join(procRoot, strconv.Itoa(pid), "oom_score_adj")
		if err := os.WriteFile(path, []byte("0"), 0); err != nil {
			c.log.Warn("reset OOM score of VMM", "unit", spec.Name, "error", err)
		}
	}
	if spec.LimitNOFILE == 0 {
		return
	}
	want := unix.Rlimit{Cur: spec.LimitNOFILE, Max: spec.LimitNOFILE}
	err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &want, nil)
	if errors.Is(err, unix.EPERM) {
		var have unix.Rlimit
		if unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &have) == nil {
			want = unix.Rlimit{Cur: min(have.Max, spec.LimitNOFILE), Max: have.Max}
			err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &want, nil)
		}
		c.log.Warn("open-file limit of VMM capped by the daemon's own", "unit", spec.Name, "limit", want.Cur)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		c.log.Warn("set open-file limit of VMM", "unit", spec.Name, "error", err)
	}
}

// spawn forks and executes; it returns once the program is running.
func spawn(spec Spec) (pid, fd int, err error) {
	program, err := spec.program()
	if err != nil {
		return 0, -1, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, -1, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer null.Close()
	out, err := spec.openOutput()
	if err != nil {
		return 0, -1, err
	}
	defer out.Close()
	if err := sealDescriptors(); err != nil {
		return 0, -1, err
	}
	fd = -1
	pid, err = syscall.ForkExec(program, spec.Argv, &syscall.ProcAttr{
		Dir:   spec.dir(),
		Env:   spec.environ(),
		Files: []uintptr{null.Fd(), out.Fd(), out.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &fd},
	})
	if err != nil {
		return 0, -1, fmt.Errorf("start %s: %w", program, err)
	}
	if fd < 0 {
		return 0, -1, abandon(pid)
	}
	return pid, fd, nil
}

// abandon ends a child that came without a pidfd. It is not reaped yet, so
// its pid is still its own.
func abandon(pid int) error {
	_ = syscall.Kill(pid, syscall.SIGKILL)
	_, _ = syscall.Wait4(pid, nil, 0, nil)
	return errors.New("kernel gives no pidfd at clone (needs Linux 5.4)")
}

// sealDescriptors marks every descriptor above stderr close-on-exec. Go opens
// its own that way; this catches what the daemon inherited from whoever
// started it.
func sealDescriptors() error {
	err := unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("seal descriptors: %w", err)
	}
	// Before Linux 5.11.
	entries, err := os.ReadDir(procRoot + "/self/fd")
	if err != nil {
		return fmt.Errorf("seal descriptors: %w", err)
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return nil
}

// Adopt takes up a process; see Supervisor.
func (c *Child) Adopt(ctx context.Context, id Identity) (Process, error) {
	return adopt(ctx, c.w, c.bootID, id, reap)
}

func adopt(ctx context.Context, w *watcher, bootID string, id Identity, outcome func(int, bool) (Exit, bool)) (Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := id.validate(); err != nil {
		return nil, err
	}
	if id.BootID != bootID {
		return nil, fmt.Errorf("pid %d belongs to an earlier boot: %w", id.PID, ErrGone)
	}
	if w.isClosed() {
		return nil, ErrClosed
	}
	if p := w.known(id); p != nil {
		return existing(p, id)
	}
	fd, seen, err := openProcess(id.PID, bootID)
	if err != nil {
		return nil, err
	}
	switch {
	case seen.StartTicks != id.StartTicks:
		err = fmt.Errorf("pid %d was started again at tick %d: %w", id.PID, seen.StartTicks, ErrGone)
	case seen.Marker != id.Marker:
		err = fmt.Errorf("pid %d: %w", id.PID, ErrNotOurs)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	p, err := w.add(fd, id, outcome)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("watch pid %d: %w", id.PID, err)
	}
	return p, nil
}

// existing answers an Adopt of a process that is watched already.
func existing(p *proc, id Identity) (Process, error) {
	if p.id.Marker != id.Marker {
		return nil, fmt.Errorf("pid %d: %w", id.PID, ErrNotOurs)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd >= 0 {
		if running, err := alive(p.fd); err != nil {
			return nil, err
		} else if running {
			return p, nil
		}
	}
	return nil, fmt.Errorf("pid %d: %w", id.PID, ErrGone)
}

// Find returns the processes with this marker; see Supervisor.
func (c *Child) Find(ctx context.Context, marker string) ([]Identity, error) {
	return scan(ctx, c.bootID, func(m string) bool { return m == marker })
}

// FindAll returns the processes whose marker starts with prefix.
func (c *Child) FindAll(ctx context.Context, prefix string) ([]Identity, error) {
	return scan(ctx, c.bootID, func(m string) bool { return strings.HasPrefix(m, prefix) })
}

// systemdRuns says whether systemd is PID 1, by the test of sd_booted(3).
func systemdRuns() bool {
	st, err := os.Lstat("/run/systemd/system")
	return err == nil && st.IsDir()
}

// Auto returns the supervisor that Options.Kind names, or for KindAuto the one
// that fits this host: Systemd when systemd is PID 1, answers on its bus and
// may be asked (root), else Child. It logs the choice and its reason.
func Auto(ctx context.Context, opts Options) (Supervisor, error) {
	opts = opts.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var reason string
	switch {
	case opts.Kind == KindSystemd:
		return asSupervisor(NewSystemd(ctx, opts))
	case opts.Kind == KindChild:
		reason = "configured"
	case opts.Kind != KindAuto:
		return nil, fmt.Errorf("%w: supervisor %q, want auto, child or systemd", ErrInvalid, opts.Kind)
	case !systemdRuns():
		reason = "systemd is not PID 1"
	case os.Geteuid() != 0:
		reason = "systemd's system bus needs root"
	default:
		s, err := NewSystemd(ctx, opts)
		if err == nil {
			opts.Logger.Info("VMMs run as transient systemd services", "supervisor", KindSystemd, "reason", "systemd is PID 1")
			return s, nil
		}
		opts.Logger.Warn("systemd is PID 1 but does not answer; VMMs share the daemon's cgroup", "error", err)
		reason = "systemd does not answer on its bus"
	}
	opts.Logger.Info("VMMs run as detached children", "supervisor", KindChild, "reason", reason)
	return asSupervisor(NewChild(opts))
}

// asSupervisor keeps a nil pointer from becoming a non-nil interface.
func asSupervisor[T Supervisor](s T, err error) (Supervisor, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}
