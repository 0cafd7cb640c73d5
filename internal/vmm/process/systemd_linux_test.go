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
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process/processtest"
)

func systemdFactory(connect func(context.Context, process.Options) (*process.Systemd, error)) processtest.Factory {
	return processtest.Factory{
		New: func(t *testing.T) process.Supervisor {
			s, err := connect(context.Background(), process.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Stay: sleeper(),
		Exit: func(code int) []string { return argv("exit", strconv.Itoa(code)) },
	}
}

func TestSystemdConforms(t *testing.T) {
	if _, err := os.Stat("/run/systemd/system"); err != nil || os.Geteuid() != 0 {
		t.Skip("SKIPPED LOUDLY: needs systemd as PID 1 and root; transient services of the system manager are NOT tested")
	}
	processtest.Conformance(t, systemdFactory(process.NewSystemd))
}

// inPrivateNamespace makes systemd believe that it is PID 1's child, in a mount
// namespace of its own, and becomes its user manager.
const inPrivateNamespace = `mkdir -p /run/systemd && mount -t tmpfs tmpfs /run/systemd && mkdir -p /run/systemd/system &&
exec /lib/systemd/systemd --user --log-target=console`

// userManager runs a systemd user manager on a private bus where systemd is not
// PID 1, and returns the address of the bus.
func userManager(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED LOUDLY: needs root for a private mount namespace; transient services are NOT tested")
	}
	for _, program := range []string{"dbus-daemon", "unshare", "/lib/systemd/systemd"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED LOUDLY: %s is missing (Debian packages dbus-daemon, util-linux, systemd); transient services are NOT tested", program)
		}
	}
	dir, err := os.MkdirTemp("", "systemd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	address := "unix:path=" + filepath.Join(dir, "bus")
	env := append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "XDG_CONFIG_HOME="+dir, "DBUS_SESSION_BUS_ADDRESS="+address)
	run(t, env, "dbus-daemon", "--session", "--nofork", "--nopidfile", "--address="+address)
	bus := filepath.Join(dir, "bus")
	eventually(t, "bus is up", func() bool { _, err := os.Stat(bus); return err == nil })
	log := run(t, env, "unshare", "--mount", "sh", "-c", inPrivateNamespace)
	eventually(t, "user manager is up or ended", func() bool {
		s, err := process.NewSystemdOn(t.Context(), process.Options{}, address)
		if err == nil {
			err = s.Ping(t.Context())
			_ = s.Close()
		}
		return err == nil || log.ended()
	})
	if log.ended() {
		t.Skipf("SKIPPED LOUDLY: no systemd user manager can run here, transient services are NOT tested: %s", log)
	}
	return address
}

// program is a background process of a test.
type program struct {
	path string
	done chan struct{}
}

func run(t *testing.T, env []string, argv ...string) *program {
	t.Helper()
	p := &program{path: filepath.Join(t.TempDir(), "log"), done: make(chan struct{})}
	out, err := os.Create(p.path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-p.done
	})
	return p
}

func (p *program) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *program) String() string {
	raw, _ := os.ReadFile(p.path)
	return string(raw)
}

func TestSystemdConformsOnAUserManager(t *testing.T) {
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		t.Skip("SKIPPED: systemd is PID 1 here, TestSystemdConforms asks the real one")
	}
	before := goleak.IgnoreCurrent()
	t.Run("manager", func(t *testing.T) {
		address := userManager(t)
		connect := func(ctx context.Context, o process.Options) (*process.Systemd, error) {
			return process.NewSystemdOn(ctx, o, address)
		}
		t.Run("conformance", func(t *testing.T) { processtest.Conformance(t, systemdFactory(connect)) })
		t.Run("limits, environment, output and unit reach the process", func(t *testing.T) {
			s, err := connect(t.Context(), process.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			transient(t, s)
		})
	})
	goleak.VerifyNone(t, before)
}

func transient(t *testing.T, s *process.Systemd) {
	spec := process.Spec{
		Name: fmt.Sprintf("chp-test-%d-limits", os.Getpid()), Marker: "limits/" + t.TempDir(),
		Argv: []string{"sh", "-c", `echo "$A $(ulimit -n) $PWD"; sleep 3600; true`, "$A", "${A} 'quoted' %i", "$$"},
		Env:  []string{"A=value with blanks"}, Dir: "/tmp", Output: filepath.Join(t.TempDir(), "out"),
		LimitNOFILE: 300, MemoryMax: 64 << 20, Slice: "chptest.slice",
	}
	p, err := s.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		end(t, p)
		eventually(t, "what the main process left is ended by systemd", func() bool {
			found, err := s.Find(context.Background(), spec.Marker)
			return err == nil && len(found) == 0
		})
	}()
	if p.Identity().Unit != spec.Name+".service" {
		t.Errorf("unit %q", p.Identity().Unit)
	}
	want := "value with blanks 300 /tmp\n"
	eventually(t, "output is written", func() bool {
		raw, _ := os.ReadFile(spec.Output)
		return strings.HasSuffix(string(raw), "\n")
	})
	if raw, _ := os.ReadFile(spec.Output); string(raw) != want {
		t.Errorf("output %q, want %q", raw, want)
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.Identity().PID))
	if got := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00"); err != nil || !slices.Equal(got, spec.Argv) {
		t.Errorf("arguments %q, %v; want %q", got, err, spec.Argv)
	}
	found, err := s.Find(t.Context(), spec.Marker)
	if err != nil || len(found) == 0 || found[0].Unit != spec.Name+".service" {
		t.Errorf("found %+v, %v", found, err)
	}
	if _, err := s.Start(t.Context(), spec); err == nil {
		t.Error("the same unit was started twice")
	}
}
