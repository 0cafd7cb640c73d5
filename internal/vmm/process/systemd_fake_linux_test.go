// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process/processtest"
)

// fakeSystemd answers on a private bus as systemd 252 was seen to answer. It
// makes no cgroups and no units: a process is a child of the test. A real
// manager is never started by a test, since it takes over the host's cgroups.
type fakeSystemd struct {
	conn *godbus.Conn

	mu    sync.Mutex
	jobs  uint32
	units map[string]*fakeUnit
	props map[string]map[string]godbus.Variant // of the last start, by unit
	slow  atomic.Int64                         // before properties are told, in nanoseconds
}

type fakeUnit struct {
	name         string
	refs         int
	pid          uint32
	code, status int32 // of the end
	ended        chan struct{}
}

// property is D-Bus type (sv).
type property struct {
	Name  string
	Value godbus.Variant
}

type auxiliary struct {
	Name       string
	Properties []property
}

// command is D-Bus type (sasb).
type command struct {
	Path             string
	Args             []string
	UncleanIsFailure bool
}

// signatures are the properties that systemd takes, with their types.
var signatures = map[string]string{
	"Description": "s", "ExecStart": "a(sasb)", "Type": "s", "KillMode": "s", "Restart": "s", "CollectMode": "s",
	"AddRef": "b", "Environment": "as", "WorkingDirectory": "s", "UMask": "u", "StandardInput": "s",
	"StandardOutput": "s", "StandardError": "s", "StandardOutputFileToAppend": "s", "StandardErrorFileToAppend": "s",
	"LimitNOFILE": "t", "LimitNOFILESoft": "t", "MemoryMax": "t", "Slice": "s",
}

func (f *fakeSystemd) StartTransientUnit(name, mode string, props []property, _ []auxiliary) (godbus.ObjectPath, *godbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.units[name] != nil || mode != "fail" {
		return "", godbus.NewError("org.freedesktop.systemd1.UnitExists", []any{name + " exists"})
	}
	got := map[string]godbus.Variant{}
	for _, p := range props {
		if want := signatures[p.Name]; want != p.Value.Signature().String() {
			return "", godbus.NewError("org.freedesktop.DBus.Error.InvalidArgs",
				[]any{fmt.Sprintf("%s has type %s, want %s", p.Name, p.Value.Signature(), want)})
		}
		got[p.Name] = p.Value
	}
	f.props[name] = got
	u := &fakeUnit{name: name, ended: make(chan struct{})}
	if ref, ok := got["AddRef"].Value().(bool); ok && ref {
		u.refs = 1
	}
	f.units[name] = u
	f.jobs++
	job := godbus.ObjectPath("/org/freedesktop/systemd1/job/" + strconv.Itoa(int(f.jobs)))
	go f.start(u, f.jobs, job, got)
	return job, nil
}

func (f *fakeSystemd) start(u *fakeUnit, id uint32, job godbus.ObjectPath, props map[string]godbus.Variant) {
	var commands []command
	_ = godbus.Store([]any{props["ExecStart"].Value()}, &commands)
	cmd := &exec.Cmd{Path: commands[0].Path, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	for _, a := range commands[0].Args {
		cmd.Args = append(cmd.Args, strings.ReplaceAll(a, "$$", "$"))
	}
	cmd.Env, _ = props["Environment"].Value().([]string)
	cmd.Dir, _ = props["WorkingDirectory"].Value().(string)
	if path, ok := props["StandardOutputFileToAppend"].Value().(string); ok {
		if out, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0); err == nil {
			defer out.Close()
			cmd.Stdout, cmd.Stderr = out, out
		}
	}
	result := "done"
	if err := cmd.Start(); err != nil {
		f.finish(u, 1, 203) // EXIT_EXEC
		result = "failed"
	} else {
		f.mu.Lock()
		u.pid = uint32(cmd.Process.Pid)
		f.mu.Unlock()
		go func() {
			_ = cmd.Wait()
			ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if ws.Signaled() {
				f.finish(u, 2, int32(ws.Signal()))
			} else {
				f.finish(u, 1, int32(ws.ExitStatus()))
			}
		}()
		// A program that ends with a failure before systemd has noticed its
		// exec makes the whole job fail.
		if strings.Contains(strings.Join(cmd.Args, " "), role+" exit") {
			<-u.ended
			if u.status != 0 {
				result = "failed"
			}
		}
	}
	_ = f.conn.Emit("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager.JobRemoved", id, job, u.name, result)
}

func (f *fakeSystemd) finish(u *fakeUnit, code, status int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u.code, u.status = code, status
	close(u.ended)
	f.collect(u)
}

// collect forgets a unit that is over and not pinned.
func (f *fakeSystemd) collect(u *fakeUnit) {
	select {
	case <-u.ended:
		if u.refs <= 0 {
			delete(f.units, u.name)
		}
	default:
	}
}

func (f *fakeSystemd) ref(name string, by int) *godbus.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.units[name]
	if u == nil {
		return godbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{name + " is not loaded"})
	}
	u.refs += by
	f.collect(u)
	return nil
}

func (f *fakeSystemd) RefUnit(name string) *godbus.Error   { return f.ref(name, 1) }
func (f *fakeSystemd) UnrefUnit(name string) *godbus.Error { return f.ref(name, -1) }

// unitProperties answers org.freedesktop.DBus.Properties below all units.
type unitProperties struct{ f *fakeSystemd }

func (p unitProperties) GetAll(msg godbus.Message, iface string) (map[string]godbus.Variant, *godbus.Error) {
	time.Sleep(time.Duration(p.f.slow.Load()))
	path, _ := msg.Headers[godbus.FieldPath].Value().(godbus.ObjectPath)
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	for _, u := range p.f.units {
		if iface != "org.freedesktop.systemd1.Service" || string(path) != unitPath(u.name) {
			continue
		}
		main := u.pid
		if u.code != 0 {
			main = 0
		}
		return map[string]godbus.Variant{
			"MainPID": godbus.MakeVariant(main), "ExecMainPID": godbus.MakeVariant(u.pid),
			"ExecMainCode": godbus.MakeVariant(u.code), "ExecMainStatus": godbus.MakeVariant(u.status),
			"ExecMainStartTimestampMonotonic": godbus.MakeVariant(uint64(123456789)),
		}, nil
	}
	return nil, godbus.NewError("org.freedesktop.DBus.Error.UnknownInterface", []any{"unknown interface"})
}

// cgroup is what /proc/PID/cgroup would hold.
func (f *fakeSystemd) cgroup(pid int) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range f.units {
		if int(u.pid) == pid {
			return []byte("0::/system.slice/" + u.name + "\n"), nil
		}
	}
	return []byte("0::/\n"), nil
}

func unitPath(name string) string {
	return "/org/freedesktop/systemd1/unit/" + dbus.PathBusEscape(name)
}

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>%s</listen><auth>EXTERNAL</auth><policy context="default">
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`

// startFakeSystemd runs a private bus with a fake systemd on it.
func startFakeSystemd(t *testing.T) (*fakeSystemd, string) {
	t.Helper()
	daemon, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("SKIPPED LOUDLY: dbus-daemon is missing (Debian package dbus-daemon); the D-Bus side of Systemd is NOT tested")
	}
	dir, err := os.MkdirTemp("", "bus")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	address := "unix:path=" + filepath.Join(dir, "bus")
	config := filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, busConfig, address), 0o600); err != nil {
		t.Fatal(err)
	}
	bus := exec.Command(daemon, "--config-file="+config, "--nofork", "--nopidfile", "--nosyslog")
	if err := bus.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = bus.Process.Kill()
		_ = bus.Wait()
	})
	f := &fakeSystemd{units: map[string]*fakeUnit{}, props: map[string]map[string]godbus.Variant{}}
	eventually(t, "bus is up", func() bool {
		f.conn, err = godbus.Connect(address)
		return err == nil
	})
	t.Cleanup(func() { _ = f.conn.Close() })
	for _, err := range []error{
		f.conn.Export(f, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"),
		f.conn.ExportSubtree(unitProperties{f}, "/org/freedesktop/systemd1/unit", "org.freedesktop.DBus.Properties"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.conn.RequestName("org.freedesktop.systemd1", godbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	return f, address
}

func TestSystemdConformsOnAFakeOne(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("fake", func(t *testing.T) {
		fake, address := startFakeSystemd(t)
		connect := func(t *testing.T) process.Supervisor {
			s, err := process.NewSystemdOn(context.Background(), address, fake.cgroup)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		t.Run("conformance", func(t *testing.T) {
			processtest.Conformance(t, processtest.Factory{
				New: connect, Stay: sleeper(),
				Exit: func(code int) []string { return argv("exit", strconv.Itoa(code)) },
			})
		})
		t.Run("what the unit is made of", func(t *testing.T) { unitIsMadeOf(t, fake, connect(t)) })
	})
	goleak.VerifyNone(t, before)
}

func unitIsMadeOf(t *testing.T, fake *fakeSystemd, s process.Supervisor) {
	defer s.Close()
	spec := process.Spec{
		Name: "chp-test-unit", Marker: "unit/" + t.TempDir(), Dir: "/tmp", Env: []string{"A=b c"},
		Argv:   []string{"sh", "-c", "sleep 3600; true", "$A", "${A} 'quoted' %i", "$$"},
		Output: filepath.Join(t.TempDir(), "out"), LimitNOFILE: 300, MemoryMax: 64 << 20, Slice: "chp.slice",
	}
	p, err := s.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		// The shell's child carries the marker too; the real systemd would end it.
		pgid := p.Identity().PID
		end(t, p)
		_ = syscall.Kill(-pgid, syscall.SIGKILL)
	}()
	if got := p.Identity().Unit; got != "chp-test-unit.service" {
		t.Errorf("unit %q", got)
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.Identity().PID))
	if got := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00"); err != nil || !slices.Equal(got, spec.Argv) {
		t.Errorf("arguments %q, %v; want %q", got, err, spec.Argv)
	}
	fake.mu.Lock()
	props := fake.props["chp-test-unit.service"]
	fake.mu.Unlock()
	for name, want := range map[string]any{
		"Type": "exec", "KillMode": "mixed", "Restart": "no", "CollectMode": "inactive-or-failed", "AddRef": true,
		"WorkingDirectory": "/tmp", "StandardInput": "null", "StandardOutputFileToAppend": spec.Output,
		"StandardErrorFileToAppend": spec.Output, "LimitNOFILE": uint64(300), "LimitNOFILESoft": uint64(300),
		"MemoryMax": uint64(64 << 20), "Slice": "chp.slice",
	} {
		if got := props[name].Value(); got != want {
			t.Errorf("property %s is %v, want %v", name, got, want)
		}
	}
	if st, err := os.Stat(spec.Output); err != nil || st.Mode().Perm()&0o037 != 0 {
		t.Errorf("output file: %v, %v; want at most 0640", st, err)
	}
	if _, err := s.Start(t.Context(), spec); err == nil {
		t.Error("the same unit was started twice")
	}
}

func TestSystemdThatWentAwayIsUnknownAndComesBack(t *testing.T) {
	fake, address := startFakeSystemd(t)
	s, err := process.NewSystemdOn(t.Context(), address, fake.cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	spec := process.Spec{Name: "chp-test-away", Marker: "away/" + t.TempDir(), Argv: sleeper()}
	p, err := s.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer end(t, p)
	fake.mu.Lock()
	slice := fake.props["chp-test-away.service"]["Slice"].Value()
	fake.mu.Unlock()
	if slice != process.DefaultSlice {
		t.Errorf("a VMM for which no slice is named is in %v", slice)
	}
	if _, err := fake.conn.ReleaseName("org.freedesktop.systemd1"); err != nil {
		t.Fatal(err)
	}
	other := spec
	other.Name = "chp-test-away-2"
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := s.Start(ctx, other); err == nil {
		t.Fatal("a unit was started without systemd")
	}
	// Watching and signalling need no systemd; only the exit code is lost.
	end(t, p)
	if exit := p.Exit(); exit.Known {
		t.Errorf("exit %+v is known although nobody could tell", exit)
	}
	if _, err := fake.conn.RequestName("org.freedesktop.systemd1", godbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	again, err := s.Start(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	end(t, again)
}

// On a server that was overloaded for a second, units stayed pinned for ever, and their machines could not start again.
func TestAUnitIsLetGoAlthoughSystemdIsSlowToTellHowItsProcessEnded(t *testing.T) {
	fake, address := startFakeSystemd(t)
	s, err := process.NewSystemdOn(t.Context(), address, fake.cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	spec := process.Spec{Name: "chp-test-slow", Marker: "slow/" + t.TempDir(), Argv: sleeper()}
	p, err := s.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	fake.slow.Store(int64(2 * time.Second))
	end(t, p)
	if exit := p.Exit(); exit.Known {
		t.Errorf("exit %+v is known although systemd was slow", exit)
	}
	fake.slow.Store(0)
	eventually(t, "the unit is let go", func() bool {
		fake.mu.Lock()
		defer fake.mu.Unlock()
		return fake.units["chp-test-slow.service"] == nil
	})
	again, err := s.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	end(t, again)
}
