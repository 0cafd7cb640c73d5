// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// adoptedPoll is how often an adopted process is looked at; without pidfd
// there is nothing to wait on.
const adoptedPoll = 300 * time.Millisecond

// Child starts detached children. Outside Linux there is neither procfs nor
// pidfd: identity comes from ps, the start time is in Unix seconds, and a
// signal is sent by pid right after the identity was checked again.
type Child struct {
	bootID string
	log    *slog.Logger
	now    func() time.Time
	life   context.Context
	end    context.CancelFunc

	mu    sync.Mutex
	byPID map[int]*proc
}

var _ Supervisor = (*Child)(nil)

type proc struct {
	id    Identity
	life  context.Context
	done  chan struct{}
	child bool

	mu     sync.Mutex
	isOver bool
	exit   Exit
}

var _ Process = (*proc)(nil)

// NewChild returns a supervisor of detached children.
func NewChild(opts Options) (*Child, error) {
	opts = opts.withDefaults()
	out, err := exec.Command("sysctl", "-n", "kern.bootsessionuuid").Output()
	bootID := strings.TrimSpace(string(out))
	if err != nil || bootID == "" {
		return nil, fmt.Errorf("read boot id: %w", errors.Join(err, errors.ErrUnsupported))
	}
	c := &Child{bootID: bootID, log: opts.Logger, now: opts.Now, byPID: map[int]*proc{}}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// Auto returns Child; systemd exists only on Linux.
func Auto(_ context.Context, opts Options) (Supervisor, error) {
	opts = opts.withDefaults()
	if opts.Kind != KindAuto && opts.Kind != KindChild {
		return nil, fmt.Errorf("%w: supervisor %q is not available on this system", ErrInvalid, opts.Kind)
	}
	opts.Logger.Info("VMMs run as detached children", "supervisor", KindChild, "reason", "this system has no systemd")
	return NewChild(opts)
}

// Kind is KindChild.
func (c *Child) Kind() string { return KindChild }

// Close stops watching; the processes go on.
func (c *Child) Close() error {
	c.end()
	return nil
}

// Start runs the process; see Supervisor.
func (c *Child) Start(ctx context.Context, spec Spec) (Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c.life.Err() != nil {
		return nil, ErrClosed
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	program, err := spec.program()
	if err != nil {
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer null.Close()
	out, err := spec.openOutput()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	child, err := os.StartProcess(program, spec.Argv, &os.ProcAttr{
		Dir: spec.dir(), Env: spec.environ(), Files: []*os.File{null, out, out},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	start, _, err := look(ctx, child.Pid)
	if err != nil && !errors.Is(err, ErrGone) {
		_ = child.Kill()
		_, _ = child.Wait()
		return nil, fmt.Errorf("take up %s: %w", spec.Name, err)
	}
	p := c.watch(Identity{PID: child.Pid, StartTicks: max(1, start), BootID: c.bootID, Marker: spec.Marker}, true)
	go func() {
		state, err := child.Wait()
		exit := Exit{Code: -1}
		if err == nil {
			exit = Exit{Known: true, Code: state.ExitCode()}
			if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
				exit.Signal = signalName(ws.Signal())
			}
		}
		c.ended(p, exit)
	}()
	return p, nil
}

func (c *Child) watch(id Identity, child bool) *proc {
	p := &proc{id: id, life: c.life, done: make(chan struct{}), child: child}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byPID[id.PID] = p
	return p
}

func (c *Child) ended(p *proc, exit Exit) {
	c.mu.Lock()
	if c.byPID[p.id.PID] == p {
		delete(c.byPID, p.id.PID)
	}
	c.mu.Unlock()
	if c.life.Err() != nil {
		return
	}
	exit.At = c.now()
	p.mu.Lock()
	p.exit, p.isOver = exit, true
	p.mu.Unlock()
	close(p.done)
}

// Adopt takes up a process; see Supervisor.
func (c *Child) Adopt(ctx context.Context, id Identity) (Process, error) {
	if err := id.validate(); err != nil {
		return nil, err
	}
	if c.life.Err() != nil {
		return nil, ErrClosed
	}
	if id.BootID != c.bootID {
		return nil, fmt.Errorf("pid %d belongs to an earlier boot: %w", id.PID, ErrGone)
	}
	if err := verify(ctx, id); err != nil {
		return nil, err
	}
	c.mu.Lock()
	known := c.byPID[id.PID]
	c.mu.Unlock()
	if known != nil && known.id == id {
		return known, nil
	}
	p := c.watch(id, false)
	go c.poll(p)
	return p, nil
}

func (c *Child) poll(p *proc) {
	tick := time.NewTicker(adoptedPoll)
	defer tick.Stop()
	for {
		select {
		case <-c.life.Done():
			return
		case <-tick.C:
		}
		if err := verify(c.life, p.id); errors.Is(err, ErrGone) {
			c.ended(p, Exit{Code: -1})
			return
		}
	}
}

// Find returns the processes with this marker; see Supervisor.
func (c *Child) Find(ctx context.Context, marker string) ([]Identity, error) {
	return c.scan(ctx, func(m string) bool { return m == marker })
}

// FindAll returns the processes whose marker starts with prefix.
func (c *Child) FindAll(ctx context.Context, prefix string) ([]Identity, error) {
	return c.scan(ctx, func(m string) bool { return strings.HasPrefix(m, prefix) })
}

func (c *Child) scan(ctx context.Context, match func(string) bool) ([]Identity, error) {
	out, err := exec.CommandContext(ctx, "ps", "-axEww", "-o", "pid=,command=").Output()
	if err != nil {
		return nil, fmt.Errorf("scan processes: %w", err)
	}
	var found []Identity
	for line := range strings.Lines(string(out)) {
		marker := markerIn(line)
		fields := strings.Fields(line)
		if marker == "" || !match(marker) || len(fields) == 0 {
			continue
		}
		pid, err := strconv.Atoi(fields[0])
		if err != nil || pid == os.Getpid() {
			continue
		}
		start, seen, err := look(ctx, pid)
		switch {
		case errors.Is(err, ErrGone):
		case err != nil:
			return nil, err
		case seen == marker:
			found = append(found, Identity{PID: pid, StartTicks: start, BootID: c.bootID, Marker: marker})
		}
	}
	return found, nil
}

func markerIn(line string) string {
	for _, f := range strings.Fields(line) {
		if v, ok := strings.CutPrefix(f, MarkerEnv+"="); ok {
			return v
		}
	}
	return ""
}

// look asks ps for start time and marker of a process.
func look(ctx context.Context, pid int) (uint64, string, error) {
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return 0, "", fmt.Errorf("pid %d: %w", pid, ErrGone)
	}
	cmd := exec.CommandContext(ctx, "ps", "-Eww", "-o", "stat=,lstart=,command=", "-p", strconv.Itoa(pid))
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC", "PATH=" + os.Getenv("PATH")}
	out, err := cmd.Output()
	fields := strings.Fields(string(out))
	if len(fields) < 6 {
		if killErr := syscall.Kill(pid, 0); errors.Is(killErr, syscall.ESRCH) {
			return 0, "", fmt.Errorf("pid %d: %w", pid, ErrGone)
		}
		return 0, "", fmt.Errorf("ask ps for %d: %w", pid, errors.Join(err, errors.ErrUnsupported))
	}
	if strings.HasPrefix(fields[0], "Z") {
		return 0, "", fmt.Errorf("pid %d is a zombie: %w", pid, ErrGone)
	}
	at, err := time.Parse("Mon Jan 2 15:04:05 2006", strings.Join(fields[1:6], " "))
	if err != nil {
		return 0, "", fmt.Errorf("parse start time of %d: %w", pid, err)
	}
	return uint64(at.Unix()), markerIn(string(out)), nil
}

func verify(ctx context.Context, id Identity) error {
	start, marker, err := look(ctx, id.PID)
	switch {
	case err != nil:
		return err
	case start != id.StartTicks:
		return fmt.Errorf("pid %d was started again: %w", id.PID, ErrGone)
	case marker != id.Marker:
		return fmt.Errorf("pid %d: %w", id.PID, ErrNotOurs)
	}
	return nil
}

func (p *proc) Identity() Identity    { return p.id }
func (p *proc) Done() <-chan struct{} { return p.done }

func (p *proc) Exit() Exit {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

func (p *proc) Signal(ctx context.Context, sig os.Signal) error {
	num, ok := sig.(syscall.Signal)
	if !ok {
		return fmt.Errorf("%w: signal %v", ErrInvalid, sig)
	}
	if p.life.Err() != nil {
		return ErrClosed
	}
	p.mu.Lock()
	over := p.isOver
	p.mu.Unlock()
	if over {
		return os.ErrProcessDone
	}
	err := verify(ctx, p.id)
	if errors.Is(err, ErrGone) {
		return os.ErrProcessDone
	}
	if err != nil {
		return err
	}
	if err := syscall.Kill(p.id.PID, num); err != nil {
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return fmt.Errorf("send %v to pid %d: %w", sig, p.id.PID, err)
	}
	return nil
}

func signalName(sig syscall.Signal) string {
	names := map[syscall.Signal]string{
		syscall.SIGKILL: "SIGKILL", syscall.SIGTERM: "SIGTERM", syscall.SIGSEGV: "SIGSEGV",
		syscall.SIGABRT: "SIGABRT", syscall.SIGBUS: "SIGBUS", syscall.SIGINT: "SIGINT", syscall.SIGHUP: "SIGHUP",
	}
	if n, ok := names[sig]; ok {
		return n
	}
	return "SIG" + strconv.Itoa(int(sig))
}
