// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process/processtest"
)

const patience = 30 * time.Second

// role selects what a re-executed test binary does instead of testing.
const role = "process-test-role"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == role {
		play(os.Args[2:])
	}
	os.Exit(m.Run())
}

func play(args []string) {
	switch args[0] {
	case "stay":
		signal.Ignore(syscall.SIGHUP)
		for {
			time.Sleep(time.Hour)
		}
	case "exit":
		code, _ := strconv.Atoi(args[1])
		os.Exit(code)
	case "daemon":
		daemon(args[1])
	}
	os.Exit(99)
}

// daemon starts one process, prints its identity and then waits to be killed.
func daemon(dir string) {
	c, err := process.NewChild(process.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	spec := stay("orphan", dir)
	spec.Marker = "daemon/" + dir
	p, err := c.Start(context.Background(), spec)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(p.Identity())
	for {
		time.Sleep(time.Hour)
	}
}

func argv(args ...string) []string { return append([]string{os.Args[0], role}, args...) }

// sleeper is a cheap process for tests that need many.
func sleeper() []string { return []string{"sleep", "3600"} }

func stay(name, dir string) process.Spec {
	return process.Spec{
		Name: name, Marker: "test/" + dir + "/" + name, Argv: argv("stay"),
		Output: filepath.Join(dir, name+".log"),
	}
}

func newChild(t *testing.T) *process.Child {
	t.Helper()
	c, err := process.NewChild(process.Options{})
	if err != nil {
		t.Fatalf("new child supervisor: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// start runs a process that is killed with the test.
func start(t *testing.T, c *process.Child, spec process.Spec) process.Process {
	t.Helper()
	p, err := c.Start(t.Context(), spec)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() { end(t, p) })
	return p
}

func end(t *testing.T, p process.Process) {
	t.Helper()
	err := p.Signal(context.Background(), syscall.SIGKILL)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("kill pid %d: %v", p.Identity().PID, err)
		return
	}
	wait(t, p)
}

func wait(t *testing.T, p process.Process) process.Exit {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatalf("end of pid %d was not noticed", p.Identity().PID)
	}
	return p.Exit()
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

func TestChildConforms(t *testing.T) {
	defer goleak.VerifyNone(t)
	processtest.Conformance(t, processtest.Factory{
		New:  func(t *testing.T) process.Supervisor { return newChild(t) },
		Stay: sleeper(),
		Exit: func(code int) []string { return argv("exit", strconv.Itoa(code)) },
	})
}

func TestProcessSurvivesSIGKILLOfTheDaemonAndIsAdoptedWithTheSamePid(t *testing.T) {
	dir := t.TempDir()
	daemon := exec.Command(os.Args[0], role, "daemon", dir)
	daemon.Stderr = os.Stderr
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("read identity: %v", err)
	}
	var id process.Identity
	if err := json.Unmarshal(line, &id); err != nil {
		t.Fatal(err)
	}
	_ = daemon.Process.Kill()
	_ = daemon.Wait()

	c := newChild(t)
	found, err := c.Find(t.Context(), "daemon/"+dir)
	if err != nil || len(found) != 1 || found[0] != id {
		t.Fatalf("found %+v, %v; want %+v", found, err, id)
	}
	p, err := c.Adopt(t.Context(), id)
	if err != nil {
		t.Fatalf("adopt: %v", err)
	}
	if sid, err := unix.Getsid(id.PID); err != nil || sid != id.PID {
		t.Errorf("session %d, %v; want an own one, %d", sid, err, id.PID)
	}
	if err := p.Signal(t.Context(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(t.Context(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Known {
		t.Errorf("exit of a foreign child is known: %+v", exit)
	}
	// Whether its new parent reaps it or not, it is gone.
	if _, err := c.Adopt(t.Context(), id); !errors.Is(err, process.ErrGone) {
		t.Errorf("adopt after the end: %v, want ErrGone", err)
	}
}

func TestEndOfAProcessIsNoticedWithinASecond(t *testing.T) {
	c := newChild(t)
	best := time.Hour
	for i := range 3 {
		p := start(t, c, stay("vm"+strconv.Itoa(i), t.TempDir()))
		began := time.Now()
		end(t, p)
		best = min(best, time.Since(began))
	}
	// The best of three: a loaded host may delay any one of them.
	if best > time.Second {
		t.Errorf("noticed after %v", best)
	}
}

func TestTwoHundredProcessesNeedNoGoroutineEach(t *testing.T) {
	c := newChild(t)
	dir := t.TempDir()
	before := runtime.NumGoroutine()
	procs := make([]process.Process, 200)
	for i := range procs {
		spec := stay("vm"+strconv.Itoa(i), dir)
		spec.Argv, spec.Output = sleeper(), ""
		procs[i] = start(t, c, spec)
	}
	if grown := runtime.NumGoroutine() - before; grown > 5 {
		t.Errorf("%d more goroutines for 200 processes", grown)
	}
	ids, err := c.FindAll(t.Context(), "test/"+dir+"/")
	if err != nil || len(ids) != 200 {
		t.Errorf("found %d, %v; want 200", len(ids), err)
	}
	var killers sync.WaitGroup
	for _, p := range procs {
		killers.Go(func() { _ = p.Signal(context.Background(), syscall.SIGKILL) })
	}
	killers.Wait()
	for _, p := range procs {
		if exit := wait(t, p); exit.Signal != "SIGKILL" {
			t.Fatalf("exit %+v, want SIGKILL", exit)
		}
	}
}

func TestStartAndExitLeakNoDescriptorAndNoZombie(t *testing.T) {
	c := newChild(t)
	dir := t.TempDir()
	run := func(i int) int {
		spec := stay("vm"+strconv.Itoa(i), dir)
		spec.Argv = []string{"true"}
		p, err := c.Start(t.Context(), spec)
		if err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		if exit := wait(t, p); !exit.Known || exit.Code != 0 {
			t.Fatalf("exit %+v", exit)
		}
		return p.Identity().PID
	}
	run(0)
	before := descriptors(t, os.Getpid())
	for i := range 200 {
		pid := run(i)
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil {
			t.Fatalf("pid %d was not reaped", pid)
		}
	}
	if after := descriptors(t, os.Getpid()); len(after) > len(before)+2 {
		t.Errorf("descriptors grew from %d to %d: %v", len(before), len(after), after)
	}
}

func descriptors(t *testing.T, pid int) map[string]string {
	t.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	fds := map[string]string{}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			fds[e.Name()] = target
		}
	}
	return fds
}

func TestDescriptorsOfTheDaemonDoNotReachTheProcess(t *testing.T) {
	// What a careless starter of the daemon would leave open.
	leaky, err := unix.Open(os.DevNull, unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leaky)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	spec := stay("vm", t.TempDir())
	spec.Argv = sleeper()
	p := start(t, newChild(t), spec)
	got := descriptors(t, p.Identity().PID)
	want := map[string]string{"0": os.DevNull, "1": spec.Output, "2": spec.Output}
	if len(got) != len(want) || got["0"] != want["0"] || got["1"] != want["1"] || got["2"] != want["2"] {
		t.Errorf("descriptors %v, want %v", got, want)
	}
}

func TestOutputIsAppendedAndNotReadableForOthers(t *testing.T) {
	c := newChild(t)
	spec := stay("vm", t.TempDir())
	for _, word := range []string{"one", "two"} {
		spec.Argv = []string{"sh", "-c", "umask; echo " + word + "; echo err-" + word + " >&2"}
		wait(t, start(t, c, spec))
	}
	raw, err := os.ReadFile(spec.Output)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"one", "two", "err-one", "err-two"} {
		if !strings.Contains(string(raw), word) {
			t.Errorf("output %q lacks %q", raw, word)
		}
	}
	st, err := os.Stat(spec.Output)
	if err != nil || st.Mode().Perm()&0o037 != 0 {
		t.Errorf("mode %v, %v; want at most 0640", st.Mode(), err)
	}
}

func TestEnvironmentIsExactlyWhatTheSpecSays(t *testing.T) {
	t.Setenv("CHP_TEST_SECRET", "of the daemon")
	spec := stay("vm", t.TempDir())
	spec.Env = []string{"A=b"}
	spec.Argv = sleeper()
	p := start(t, newChild(t), spec)
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.Identity().PID))
	if err != nil {
		t.Fatal(err)
	}
	if want := "A=b\x00" + process.MarkerEnv + "=" + spec.Marker + "\x00"; string(raw) != want {
		t.Errorf("environment %q, want %q", raw, want)
	}
}

func TestOpenFileLimitReachesTheProcess(t *testing.T) {
	spec := stay("vm", t.TempDir())
	spec.Argv, spec.LimitNOFILE = sleeper(), 321
	p := start(t, newChild(t), spec)
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", p.Identity().PID))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			if f := strings.Fields(rest); f[0] != "321" {
				t.Errorf("soft limit %s, want 321", f[0])
			}
			return
		}
	}
	t.Error("no limit of open files")
}

func TestZombieOfALazyParentCountsAsGone(t *testing.T) {
	cmd := exec.Command(os.Args[0], role, "stay")
	cmd.Env = []string{process.MarkerEnv + "=zombie/" + t.TempDir()}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	c := newChild(t)
	marker := strings.TrimPrefix(cmd.Env[0], process.MarkerEnv+"=")
	ids, err := c.Find(t.Context(), marker)
	if err != nil || len(ids) != 1 {
		t.Fatalf("found %v, %v", ids, err)
	}
	_ = cmd.Process.Kill()
	path := fmt.Sprintf("/proc/%d/stat", ids[0].PID)
	eventually(t, "process becomes a zombie", func() bool {
		raw, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(raw), ") Z ")
	})
	if _, err := c.Adopt(t.Context(), ids[0]); !errors.Is(err, process.ErrGone) {
		t.Errorf("adopt a zombie: %v, want ErrGone", err)
	}
	if ids, err := c.Find(t.Context(), marker); err != nil || len(ids) != 0 {
		t.Errorf("find a zombie: %v, %v", ids, err)
	}
}

func TestAutoTakesAChildWhereSystemdIsNotPidOne(t *testing.T) {
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		t.Skip("SKIPPED LOUDLY: systemd is PID 1 here, so Auto chooses it; the choice of Child is not tested")
	}
	sup, err := process.Auto(t.Context(), process.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer sup.Close()
	if sup.Kind() != process.KindChild {
		t.Errorf("kind %q, want %q", sup.Kind(), process.KindChild)
	}
	if _, err := process.Auto(t.Context(), process.Options{Kind: "upstart"}); !errors.Is(err, process.ErrInvalid) {
		t.Errorf("unknown kind: %v, want ErrInvalid", err)
	}
}
