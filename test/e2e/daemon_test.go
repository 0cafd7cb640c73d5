// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

// patience is how long anything may take on a busy host that emulates its guests; $CHP_E2E_PATIENCE where even that is
// not enough.
var patience = patienceOf(os.Getenv("CHP_E2E_PATIENCE"))

func patienceOf(text string) time.Duration {
	if d, err := time.ParseDuration(text); err == nil {
		return d
	}
	return 5 * time.Minute
}

const daemonConfig = `apiVersion: config.cloud-hypervisor-provider.ironcore.dev/v1alpha1
kind: ProviderConfig
stateDir: %[1]s/state
runtimeDir: %[1]s/run
iri: {address: %[1]s/iri.sock}
streaming: {address: "127.0.0.1:0"}
servers: {healthAddress: "", metricsAddress: ""}
machineClasses:
  inline: [{metadata: {name: small}, capabilities: {cpu: 1, memory: 192Mi}}]
capacity: {cpuOvercommit: 32, reservedMemory: 64Mi, memoryOverheadPerMachine: 0}
images: {plainHTTP: [%[2]q]}
log: {level: debug}
`

// daemon is the built program and its directory; it may be started many times.
type daemon struct {
	t      *testing.T
	binary string
	dir    string
	args   []string
	env    []string

	cmd    *exec.Cmd
	exited chan error
	conn   *grpc.ClientConn
	iri.MachineRuntimeClient
}

// newDaemon prepares a daemon; the directory is short, since it ends up in socket paths.
func newDaemon(t *testing.T, binary, registry string, args ...string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "chp")
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, binary: binary, dir: dir, args: args}
	config := fmt.Sprintf(daemonConfig, dir, registry)
	if err := os.WriteFile(d.path("config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("daemon's log:\n%s", d.log())
		}
		d.sigkill()
		for _, id := range d.vmms("") { // of a failed test; by proven identity
			d.killVMM(id)
		}
		_ = os.RemoveAll(dir)
	})
	return d
}

func (d *daemon) path(parts ...string) string {
	return filepath.Join(append([]string{d.dir}, parts...)...)
}

func (d *daemon) log() string {
	raw, _ := os.ReadFile(d.path("daemon.log"))
	if len(raw) > 20000 {
		raw = raw[len(raw)-20000:]
	}
	return string(raw)
}

// start runs the daemon and waits until its socket answers.
func (d *daemon) start() {
	d.t.Helper()
	d.launch()
	deadline := time.Now().Add(patience)
	for {
		conn, err := net.Dial("unix", d.path("iri.sock"))
		if err == nil {
			_ = conn.Close()
			break
		}
		select {
		case err := <-d.exited:
			d.t.Fatalf("the daemon ended: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			d.t.Fatal("the daemon does not open its socket")
		}
	}
	d.dial()
}

func (d *daemon) dial() {
	d.t.Helper()
	conn, err := grpc.NewClient("unix://"+d.path("iri.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		d.t.Fatal(err)
	}
	d.conn, d.MachineRuntimeClient = conn, iri.NewMachineRuntimeClient(conn)
	if _, err := d.Version(d.t.Context(), &iri.VersionRequest{}); err != nil { // also opens the connection
		d.t.Fatal(err)
	}
}

// launch runs the daemon without waiting for anything.
func (d *daemon) launch() {
	d.t.Helper()
	log, err := os.OpenFile(d.path("daemon.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	d.cmd = exec.Command(d.binary, append([]string{"serve", "--config", d.path("config.yaml")}, d.args...)...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Env = append(os.Environ(), d.env...)
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	exited := make(chan error, 1)
	cmd := d.cmd
	go func() { exited <- cmd.Wait() }()
	d.exited = exited
}

// sigkill ends the daemon as a crash does.
func (d *daemon) sigkill() {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Kill()
	<-d.exited
	d.over()
}

func (d *daemon) over() {
	d.cmd = nil
	if d.conn != nil {
		_ = d.conn.Close()
		d.conn = nil
	}
}

// sigterm ends the daemon in order and expects exit code 0.
func (d *daemon) sigterm() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Fatal(err)
	}
	select {
	case err := <-d.exited:
		if err != nil {
			d.t.Errorf("the daemon ended with: %v", err)
		}
	case <-time.After(patience):
		d.t.Fatal("the daemon does not end")
	}
	d.over()
}

// diesBySIGKILL waits for the daemon's death at a failpoint.
func (d *daemon) diesBySIGKILL() {
	d.t.Helper()
	select {
	case err := <-d.exited:
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			d.t.Fatalf("the daemon ended with: %v", err)
		}
	case <-time.After(patience):
		d.t.Fatal("the failpoint was never reached")
	}
	d.over()
}

// until waits for a condition.
func (d *daemon) until(what string, ok func() bool) {
	d.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			d.t.Fatalf("never came about: %s", what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (d *daemon) get(id string) *iri.Machine {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	answer, err := d.ListMachines(ctx, &iri.ListMachinesRequest{Filter: &iri.MachineFilter{Id: id}})
	if err != nil {
		d.t.Fatal(err)
	}
	if len(answer.Machines) == 0 {
		return nil
	}
	return answer.Machines[0]
}

func (d *daemon) state(id string, want iri.MachineState) {
	d.t.Helper()
	last := ""
	defer func() {
		if d.t.Failed() {
			d.t.Log("last seen: ", last)
		}
	}()
	d.until("state "+want.String(), func() bool {
		m := d.get(id)
		last = fmt.Sprint(m.GetStatus())
		return m != nil && m.Status.State == want && m.Status.ObservedGeneration == m.Metadata.Generation
	})
}

func (d *daemon) gone(id string) {
	d.t.Helper()
	_, err := d.DeleteMachine(d.t.Context(), &iri.DeleteMachineRequest{MachineId: id})
	if err != nil && status.Code(err) != codes.Unavailable { // it is being deleted already
		d.t.Fatal(err)
	}
	d.until("machine gone", func() bool { return d.get(id) == nil })
}

func (d *daemon) consoleLog(id string) []byte {
	raw, _ := os.ReadFile(d.path("state", "machines", id, "console.log"))
	return raw
}

func (d *daemon) says(id, what string, times int) {
	d.t.Helper()
	d.until(fmt.Sprintf("console says %q %d times", what, times), func() bool {
		return bytes.Count(d.consoleLog(id), []byte(what)) >= times
	})
}

// vmms finds the VMM processes of a machine ("" = of all) by the mark in their environment and the directory in their
// arguments, looking at /proc alone.
func (d *daemon) vmms(machine string) []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if !bytes.Contains(args, []byte(d.dir)) {
			continue
		}
		for _, entry := range strings.Split(string(env), "\x00") {
			if strings.HasPrefix(entry, process.MarkerEnv+"=") && strings.Contains(entry, machine) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// vmm returns the one VMM of a machine.
func (d *daemon) vmm(machine string) int {
	d.t.Helper()
	pids := d.vmms(machine)
	if len(pids) != 1 {
		d.t.Fatalf("%d VMM processes: %v", len(pids), pids)
	}
	return pids[0]
}

func (d *daemon) killVMM(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) }

// files lists what the daemon has open.
func (d *daemon) files() []string {
	var open []string
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", d.cmd.Process.Pid))
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil {
			open = append(open, target)
		}
	}
	return open
}

// audit looks for anything that a deleted machine left behind.
func (d *daemon) audit(fdsBefore int) {
	d.t.Helper()
	if pids := d.vmms(""); len(pids) > 0 {
		d.t.Errorf("processes left: %v", pids)
	}
	for _, dir := range []string{d.path("state", "machines"), d.path("run", "vmm")} {
		if entries, _ := os.ReadDir(dir); len(entries) > 0 {
			d.t.Errorf("%s still has %v", dir, entries)
		}
	}
	if taps, _ := filepath.Glob("/sys/class/net/chp*"); len(taps) > 0 {
		d.t.Errorf("network devices left: %v", taps)
	}
	if fdsBefore > 0 {
		defer func() {
			if d.t.Failed() {
				d.t.Logf("%d open files, %d before: %v", len(d.files()), fdsBefore, d.files())
			}
		}()
		d.until("open files as before", func() bool { return len(d.files()) <= fdsBefore })
	}
}
