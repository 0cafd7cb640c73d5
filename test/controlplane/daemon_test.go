// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/registry"
)

// patience is how long anything may take on a busy host that emulates its guests.
const patience = 5 * time.Minute

const daemonConfig = `apiVersion: config.cloud-hypervisor-provider.ironcore.dev/v1alpha1
kind: ProviderConfig
stateDir: %[1]s/state
runtimeDir: %[1]s/run
iri: {address: %[1]s/iri.sock}
hypervisor: {driver: qemu, supervisor: child}
network: {plugin: user}
streaming: {address: "127.0.0.1:%[3]d"}
servers: {healthAddress: "", metricsAddress: ""}
machineClasses:
  inline: [{metadata: {name: small}, capabilities: {cpu: 1, memory: 192Mi}}]
capacity: {cpuOvercommit: 32, reservedMemory: 64Mi, memoryOverheadPerMachine: 0}
images: {plainHTTP: [%[2]q]}
`

// daemon is the built provider; it may be started many times.
type daemon struct {
	dir    string
	binary string
	image  string // of the guest
	*controlplane.Process
}

// buildDaemon builds the provider, with the dependencies that it has in its own module.
func buildDaemon(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "cloud-hypervisor-provider")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-o", binary, "./cmd/cloud-hypervisor-provider")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the daemon: %v\n%s", err, out)
	}
	return binary
}

// newDaemon serves the guest's image and starts the provider.
func newDaemon(t *testing.T, binary, dir string) *daemon {
	t.Helper()
	d := &daemon{dir: dir, binary: binary}
	host := d.serveGuest(t)
	if err := os.WriteFile(d.path("config.yaml"), fmt.Appendf(nil, daemonConfig, dir, host, freePort(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.Process != nil {
			d.Kill()
			if t.Failed() {
				t.Logf("the end of the daemon's log:\n%s", d.Log())
			}
		}
		for _, pid := range d.guests() { // of a failed test; what they run and where is theirs alone
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	d.start(t)
	return d
}

func (d *daemon) path(parts ...string) string {
	return filepath.Join(append([]string{d.dir}, parts...)...)
}

// serveGuest starts a registry with the test guest in it.
func (d *daemon) serveGuest(t *testing.T) (host string) {
	t.Helper()
	server, err := registry.Start(t.Context(), registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	files, err := guest.Build(t.Context(), guest.Options{CacheDir: guest.DefaultCacheDir()})
	if err != nil {
		t.Fatal(err)
	}
	d.image = server.Host() + "/test/guest:1"
	if _, err := guest.Push(t.Context(), files, d.image, guest.PushOptions{PlainHTTP: true}); err != nil {
		t.Fatal(err)
	}
	return server.Host()
}

// start runs the daemon and waits until its socket is open.
func (d *daemon) start(t *testing.T) {
	t.Helper()
	var err error
	d.Process, err = controlplane.StartProcess(d.path("daemon.log"), d.binary, nil, "serve", "--config", d.path("config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the daemon opens its socket", func() error {
		if !d.Running() {
			t.Fatalf("the daemon has ended:\n%s", d.Log())
		}
		conn, err := net.Dial("unix", d.path("iri.sock"))
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

// console is what the only machine's guest has said.
func (d *daemon) console() string {
	files, _ := filepath.Glob(d.path("state", "machines", "*", "console.log"))
	if len(files) != 1 {
		return ""
	}
	raw, _ := os.ReadFile(files[0])
	return string(raw)
}

// guests finds the VMM processes by the daemon's directory in their arguments.
func (d *daemon) guests() []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if bytes.HasPrefix(args, []byte("/")) && bytes.Contains(args, []byte("qemu-system")) && bytes.Contains(args, []byte(d.dir+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// clean expects that nothing is left of deleted machines.
func (d *daemon) clean(t *testing.T) {
	t.Helper()
	eventually(t, "nothing is left of the machine", func() error {
		if pids := d.guests(); len(pids) > 0 {
			return fmt.Errorf("processes %v", pids)
		}
		if entries, _ := os.ReadDir(d.path("state", "machines")); len(entries) > 0 {
			return fmt.Errorf("files %v", entries)
		}
		return nil
	})
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// errNotYet is for waits whose condition says it all.
var errNotYet = errors.New("not yet")

func eventually(t *testing.T, what string, done func() error) {
	t.Helper()
	end := time.Now().Add(patience)
	for {
		err := done()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("never came about: %s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
