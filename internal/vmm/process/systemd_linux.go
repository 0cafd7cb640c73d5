// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// exitPatience bounds how long the supervisor waits for systemd to reap a
// process that the kernel already reported as over. It stays well below the
// second in which the death of a VMM must be noticed.
const exitPatience = 700 * time.Millisecond

// Systemd starts processes as transient services: own cgroup and limits,
// untouched by whatever happens to the unit of the daemon. Signals and watching
// still go by pidfd; systemd is only asked to start and to tell the exit code.
type Systemd struct {
	bootID string
	log    *slog.Logger
	w      *watcher
	dial   func(context.Context) (*godbus.Conn, error)
	cgroup func(pid int) ([]byte, error) // contents of /proc/PID/cgroup
	life   context.Context
	end    context.CancelFunc

	mu  sync.Mutex
	bus *bus
}

var _ Supervisor = (*Systemd)(nil)

// bus is one pair of connections and the raw one of them that holds the
// references on our units.
type bus struct {
	*dbus.Conn
	refs *godbus.Conn
}

// NewSystemd connects to systemd's bus, which must answer.
func NewSystemd(ctx context.Context, opts Options) (*Systemd, error) {
	return newSystemd(ctx, opts, dialSystemBus)
}

func newSystemd(ctx context.Context, opts Options, dial func(context.Context) (*godbus.Conn, error)) (*Systemd, error) {
	opts = opts.withDefaults()
	bootID, err := readBootID()
	if err != nil {
		return nil, err
	}
	w, err := newWatcher(opts.Now)
	if err != nil {
		return nil, err
	}
	s := &Systemd{bootID: bootID, log: opts.Logger, w: w, dial: dial, cgroup: readCgroup}
	s.life, s.end = context.WithCancel(context.Background())
	if _, err := s.connect(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// dialSystemBus opens a private connection; ctx ends it.
func dialSystemBus(ctx context.Context) (*godbus.Conn, error) {
	conn, err := godbus.SystemBusPrivate(godbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	return greet(conn)
}

func greet(conn *godbus.Conn) (*godbus.Conn, error) {
	// By number: looking up the user's name would need the C library.
	err := conn.Auth([]godbus.Auth{godbus.AuthExternal(strconv.Itoa(os.Getuid()))})
	if err == nil {
		err = conn.Hello()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// connect returns the connection to systemd and opens a new one when the bus
// went away. The connection lives as long as the supervisor, not as ctx.
func (s *Systemd) connect(ctx context.Context) (*bus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return nil, ErrClosed
	}
	if s.bus != nil && s.bus.Connected() {
		return s.bus, nil
	}
	type result struct {
		bus *bus
		err error
	}
	made := make(chan result, 1)
	go func() {
		b := &bus{}
		var err error
		b.Conn, err = dbus.NewConnection(func() (*godbus.Conn, error) {
			c, err := s.dial(s.life)
			if b.refs == nil {
				b.refs = c // go-systemd makes its calls on the first one
			}
			return c, err
		})
		made <- result{b, err}
	}()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to systemd: %w", ctx.Err())
	case r := <-made:
		if r.err != nil {
			return nil, fmt.Errorf("connect to systemd: %w", r.err)
		}
		s.bus = r.bus
		return r.bus, nil
	}
}

// ref pins a unit to our connection (so that its exit code stays readable
// after the end) or lets it go.
func (b *bus) ref(ctx context.Context, unit string, hold bool) error {
	method := "org.freedesktop.systemd1.Manager.UnrefUnit"
	if hold {
		method = "org.freedesktop.systemd1.Manager.RefUnit"
	}
	obj := b.refs.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	return obj.CallWithContext(ctx, method, 0, unit).Err
}

// Kind is KindSystemd.
func (s *Systemd) Kind() string { return KindSystemd }

// Close stops watching; the services go on.
func (s *Systemd) Close() error {
	s.end()
	s.w.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bus != nil {
		s.bus.Close()
		s.bus = nil
	}
	return nil
}

// Start runs the process as spec.Name + ".service"; see Supervisor.
func (s *Systemd) Start(ctx context.Context, spec Spec) (_ Process, err error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	props, err := unitProperties(spec)
	if err != nil {
		return nil, err
	}
	// Created here because systemd would create it readable for everybody.
	out, err := spec.openOutput()
	if err != nil {
		return nil, err
	}
	out.Close()
	b, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	unit := spec.Name + ".service"
	done := make(chan string, 1)
	if _, err := b.StartTransientUnitContext(ctx, unit, "fail", props, done); err != nil {
		return nil, fmt.Errorf("start unit %s: %w", unit, err)
	}
	defer func() {
		if err != nil { // a unit that stays pinned could not be started again under its name
			s.letGo(unit)
		}
	}()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("start unit %s: %w", unit, ctx.Err())
	case r := <-done:
		if r != "done" {
			return s.failed(ctx, b, unit, spec.Marker, r)
		}
	}
	return s.hold(ctx, b, unit, spec.Marker)
}

// systemdStatuses are the exit codes with which systemd's own code between fork
// and exec ends (systemd.exec(5), "Process Exit Codes"): no program ran.
const (
	firstSystemdStatus = 200
	lastSystemdStatus  = 245
)

// failed looks at a unit whose start failed. A program that ran and ended
// before systemd noticed its exec counts as started.
func (s *Systemd) failed(ctx context.Context, b *bus, unit, marker, result string) (Process, error) {
	props, err := b.GetUnitTypePropertiesContext(ctx, unit, "Service")
	status, _ := props["ExecMainStatus"].(int32)
	pid, _ := props["ExecMainPID"].(uint32)
	own := status >= firstSystemdStatus && status <= lastSystemdStatus
	if err == nil && pid != 0 && !own {
		return s.endedAtOnce(props, unit, marker), nil
	}
	return nil, errors.Join(fmt.Errorf("start unit %s: systemd says %q (status %d)", unit, result, status), err)
}

// unrefPatience is how long a slow systemd is asked to let a unit go: a unit
// that stays pinned could not be started again under its name.
const unrefPatience = time.Minute

// letGo unpins a unit, whatever became of the call that wanted it. Where
// systemd is slow it goes on asking after it has returned.
func (s *Systemd) letGo(unit string) {
	unref := func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(s.life, patience)
		defer cancel()
		b, err := s.connect(ctx)
		if err != nil {
			return err
		}
		return b.ref(ctx, unit, false)
	}
	if err := unref(exitPatience); !errors.Is(err, context.DeadlineExceeded) {
		return
	}
	go func() {
		if err := unref(unrefPatience); errors.Is(err, context.DeadlineExceeded) {
			s.log.Warn("unit of ended VMM stays pinned", "unit", unit, "error", err)
		}
	}()
}

// noPID stands for a process that ended before systemd told its pid: above the kernel's limit of 4,194,304
// (PID_MAX_LIMIT), so that it is proven to be nobody's.
const noPID = 1 << 30

// hold takes up the main process of a unit that has just been started.
func (s *Systemd) hold(ctx context.Context, b *bus, unit, marker string) (Process, error) {
	props, err := b.GetUnitTypePropertiesContext(ctx, unit, "Service")
	if err != nil {
		return nil, fmt.Errorf("read main process of %s: %w", unit, err)
	}
	pid, _ := props["MainPID"].(uint32)
	fd, id, err := -1, Identity{}, ErrGone
	if pid != 0 {
		fd, id, err = openProcess(int(pid), s.bootID)
	}
	if errors.Is(err, ErrGone) {
		return s.endedAtOnce(props, unit, marker), nil
	}
	if err == nil && id.Marker != marker {
		_ = unix.Close(fd)
		err = ErrNotOurs
	}
	if err != nil {
		return nil, fmt.Errorf("take up main process of %s: %w", unit, err)
	}
	id.Unit = unit
	p, err := s.w.add(fd, id, s.outcome(id))
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("watch main process of %s: %w", unit, err)
	}
	return p, nil
}

// endedAtOnce describes a process that was over before it could be held. Its
// exact start time is lost with it; what systemd noted is near enough to prove
// that a later process with this pid is another one.
func (s *Systemd) endedAtOnce(props map[string]any, unit, marker string) *proc {
	pid, _ := props["ExecMainPID"].(uint32)
	if pid == 0 {
		pid = noPID
	}
	micros, _ := props["ExecMainStartTimestampMonotonic"].(uint64)
	id := Identity{
		PID: int(pid), StartTicks: max(1, micros/10_000), BootID: s.bootID, Marker: marker, Unit: unit,
	}
	p := &proc{id: id, fd: -1, done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(s.life, exitPatience)
	defer cancel()
	exit := s.askExit(ctx, id)
	exit.At = s.w.now()
	p.end(exit)
	return p
}

func unitProperties(spec Spec) ([]dbus.Property, error) {
	program, err := spec.program()
	if err != nil {
		return nil, err
	}
	prop := func(name string, value any) dbus.Property {
		return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
	}
	props := []dbus.Property{
		dbus.PropDescription("Virtual machine process " + spec.Name),
		prop("ExecStart", []execCommand{{Path: program, Args: literal(spec.Argv), UncleanIsFailure: false}}),
		dbus.PropType("exec"), // the job is done when the program runs, not when it was forked
		prop("KillMode", "mixed"),
		prop("Restart", "no"),
		prop("CollectMode", "inactive-or-failed"),
		prop("AddRef", true),
		prop("Environment", spec.environ()),
		prop("WorkingDirectory", spec.dir()),
		prop("UMask", uint32(0o027)),
		prop("StandardInput", "null"),
		dbus.PropSlice(cmp.Or(spec.Slice, DefaultSlice)),
	}
	if spec.Output != "" {
		props = append(props,
			prop("StandardOutputFileToAppend", spec.Output), prop("StandardErrorFileToAppend", spec.Output))
	} else {
		props = append(props, prop("StandardOutput", "null"), prop("StandardError", "null"))
	}
	if spec.LimitNOFILE != 0 {
		props = append(props, prop("LimitNOFILE", spec.LimitNOFILE), prop("LimitNOFILESoft", spec.LimitNOFILE))
	}
	if spec.MemoryMax != 0 {
		props = append(props, prop("MemoryMax", uint64(spec.MemoryMax)))
	}
	return props, nil
}

// literal keeps systemd from replacing variables in arguments ("$A", "${A}").
func literal(argv []string) []string {
	out := make([]string, len(argv))
	for i, a := range argv {
		out[i] = strings.ReplaceAll(a, "$", "$$")
	}
	return out
}

// execCommand is an entry of ExecStart, D-Bus type (sasb).
type execCommand struct {
	Path             string
	Args             []string
	UncleanIsFailure bool
}

// outcome asks systemd for the exit code. Asking takes a while (systemd must
// reap first), so it never happens on the watcher's goroutine.
func (s *Systemd) outcome(id Identity) func(int, bool) (Exit, bool) {
	return func(_ int, wait bool) (Exit, bool) {
		if !wait {
			return Exit{Code: -1}, false
		}
		ctx, cancel := context.WithTimeout(s.life, exitPatience)
		defer cancel()
		return s.askExit(ctx, id), true
	}
}

func (s *Systemd) askExit(ctx context.Context, id Identity) Exit {
	unknown := Exit{Code: -1}
	b, err := s.connect(ctx)
	if err != nil {
		s.log.Warn("exit code of VMM is lost", "unit", id.Unit, "error", err)
		return unknown
	}
	defer s.letGo(id.Unit) // with time of its own: ctx may be over by then
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		props, err := b.GetUnitTypePropertiesContext(ctx, id.Unit, "Service")
		if err != nil {
			s.log.Warn("exit code of VMM is lost", "unit", id.Unit, "error", err)
			return unknown
		}
		pid, _ := props["ExecMainPID"].(uint32)
		if int(pid) != id.PID {
			return unknown // the unit name has been used again
		}
		code, _ := props["ExecMainCode"].(int32)
		status, _ := props["ExecMainStatus"].(int32)
		if code != 0 {
			return decode(code, status)
		}
		select {
		case <-ctx.Done():
			return unknown
		case <-tick.C:
		}
	}
}

// Adopt takes up a process; see Supervisor. One that an earlier daemon started
// as a plain child is taken up too, without a unit.
func (s *Systemd) Adopt(ctx context.Context, id Identity) (Process, error) {
	if id.Unit == "" {
		return adopt(ctx, s.w, s.bootID, id, reap)
	}
	if s.w.known(id) == nil {
		// Best effort: without the reference only the exit code is lost.
		if b, err := s.connect(ctx); err == nil {
			if err := b.ref(ctx, id.Unit, true); err != nil {
				s.log.Warn("pin unit of adopted VMM", "unit", id.Unit, "error", err)
			}
		}
	}
	p, err := adopt(ctx, s.w, s.bootID, id, s.outcome(id))
	if err != nil {
		s.letGo(id.Unit)
	}
	return p, err
}

// Find returns the processes with this marker; see Supervisor.
func (s *Systemd) Find(ctx context.Context, marker string) ([]Identity, error) {
	return s.withUnits(scan(ctx, s.bootID, func(m string) bool { return m == marker }))
}

// FindAll returns the processes whose marker starts with prefix.
func (s *Systemd) FindAll(ctx context.Context, prefix string) ([]Identity, error) {
	return s.withUnits(scan(ctx, s.bootID, func(m string) bool { return strings.HasPrefix(m, prefix) }))
}

// withUnits adds the unit names, which the cgroup path tells.
func (s *Systemd) withUnits(ids []Identity, err error) ([]Identity, error) {
	for i := range ids {
		if raw, err := s.cgroup(ids[i].PID); err == nil {
			ids[i].Unit = unitOf(string(raw))
		}
	}
	return ids, err
}

func readCgroup(pid int) ([]byte, error) {
	return os.ReadFile(filepath.Join(procRoot, strconv.Itoa(pid), "cgroup"))
}

// unitOf finds the service in the contents of /proc/PID/cgroup: the last part
// of systemd's own hierarchy, which is "0::" or "1:name=systemd:".
func unitOf(cgroup string) string {
	for line := range strings.Lines(cgroup) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || (parts[1] != "" && parts[1] != "name=systemd") {
			continue
		}
		if unit := path.Base(parts[2]); strings.HasSuffix(unit, ".service") {
			return unit
		}
	}
	return ""
}
