// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	metaapi "github.com/ironcore-dev/ironcore/iri/apis/meta/v1alpha1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/registry"
)

const patience = 2 * time.Minute

const daemonConfig = `apiVersion: config.cloud-hypervisor-provider.ironcore.dev/v1alpha1
kind: ProviderConfig
stateDir: %[1]s/state
runtimeDir: %[1]s/run
iri: {address: %[1]s/iri.sock}
hypervisor: {driver: qemu, supervisor: child}
streaming: {address: "127.0.0.1:0"}
servers: {healthAddress: "", metricsAddress: ""}
machineClasses:
  inline: [{metadata: {name: small}, capabilities: {cpu: 1, memory: 192Mi}}]
capacity: {cpuOvercommit: 32, reservedMemory: 64Mi, memoryOverheadPerMachine: 0}
images: {plainHTTP: [%[2]q]}
`

// daemon runs with one machine that has booted.
type daemon struct {
	iri.MachineRuntimeClient
	binary  string
	config  string
	socket  string
	ref     string // of the guest's image
	state   string
	machine string
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came about: %s", what)
		}
	}
}

// build makes a program of the module in a directory, with the dependencies that this one has.
func build(t *testing.T, module, dir, name, what string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-C", module, "-o", path, what)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return path
}

// start boots a machine on the built daemon. Both are gone when the test ends.
func start(t *testing.T) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "chpx") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	binary := build(t, "../..", dir, "daemon", "./cmd/cloud-hypervisor-provider")
	host, ref := serveGuest(t)
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, daemonConfig, dir, host), 0o600); err != nil {
		t.Fatal(err)
	}
	var log logged
	cmd := exec.Command(binary, "serve", "--config", config)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("daemon's log:\n%s", log.text())
		}
	})
	d := &daemon{
		binary: binary, config: config, socket: filepath.Join(dir, "iri.sock"), ref: ref, state: filepath.Join(dir, "state"),
	}
	eventually(t, "the IRI socket is open", func() bool {
		conn, err := net.Dial("unix", d.socket)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	conn, err := grpc.NewClient("unix://"+d.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	d.MachineRuntimeClient = iri.NewMachineRuntimeClient(conn)
	d.boot(t)
	return d
}

// another boots one more machine on the same daemon.
func (d *daemon) another(t *testing.T) *daemon {
	t.Helper()
	other := *d
	other.boot(t)
	return &other
}

func (d *daemon) boot(t *testing.T) {
	t.Helper()
	created, err := d.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: &iri.Machine{
		Metadata: &metaapi.ObjectMetadata{Labels: map[string]string{"machinepoollet.ironcore.dev/machine-uid": rand.Text()}},
		Spec: &iri.MachineSpec{Class: "small", Volumes: []*iri.Volume{
			{Name: "root", Device: "oda", LocalDisk: &iri.LocalDisk{Image: &iri.ImageSpec{Image: d.ref}}},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	d.machine = created.Machine.Metadata.Id
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, _ = d.DeleteMachine(ctx, &iri.DeleteMachineRequest{MachineId: d.machine})
		eventually(t, "the machine is gone", func() bool {
			list, err := d.ListMachines(ctx, &iri.ListMachinesRequest{Filter: &iri.MachineFilter{Id: d.machine}})
			return err == nil && len(list.Machines) == 0
		})
	})
	eventually(t, "the guest is up", func() bool {
		raw, _ := os.ReadFile(filepath.Join(d.state, "machines", d.machine, "console.log"))
		return bytes.Contains(raw, []byte("guest: ready login:"))
	})
	eventually(t, "the machine is running", func() bool {
		_, err := d.Exec(t.Context(), &iri.ExecRequest{MachineId: d.machine})
		return err == nil
	})
}

// url asks for the console as the poollet does.
func (d *daemon) url(t *testing.T) string {
	t.Helper()
	answer, err := d.Exec(t.Context(), &iri.ExecRequest{MachineId: d.machine})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Url
}

// serveGuest starts a registry with the test guest in it.
func serveGuest(t *testing.T) (host, ref string) {
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
	ref = server.Host() + "/test/guest:1"
	if _, err := guest.Push(t.Context(), files, ref, guest.PushOptions{PlainHTTP: true}); err != nil {
		t.Fatal(err)
	}
	return server.Host(), ref
}

// logged collects output.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
