// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package inner

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	metaapi "github.com/ironcore-dev/ironcore/iri/apis/meta/v1alpha1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/registry"
)

// Where things lie in the machine: as docs/operations.md installs them, and what the test brings.
const (
	unit       = "cloud-hypervisor-provider.service"
	binary     = "/usr/local/bin/cloud-hypervisor-provider"
	newBinary  = "/nested/bin/daemon-new" // of another version
	configPath = "/etc/cloud-hypervisor-provider/config.yaml"
	stateDir   = "/var/lib/cloud-hypervisor-provider"
	runtimeDir = "/run/cloud-hypervisor-provider"
	iriSocket  = "/run/iri-machineprovider.sock"
	cgroups    = "/sys/fs/cgroup"
)

// patience is how long anything may take in an emulated machine on a busy host.
const patience = 20 * time.Minute

const daemonConfig = `apiVersion: config.cloud-hypervisor-provider.ironcore.dev/v1alpha1
kind: ProviderConfig
iri: {group: iri}
hypervisor: %s
machineClasses:
  inline: [{metadata: {name: small}, capabilities: {cpu: 1, memory: 192Mi}}]
capacity: {cpuOvercommit: 32, reservedMemory: 64Mi, memoryOverheadPerMachine: 0}
images: {plainHTTP: [%q]}
`

// hypervisor is what runs the guest.
type hypervisor struct {
	config string
	login  string // what the console says when the guest is up
	typed  string // typed again and again
	answer string // of a guest that lived since it was told to remember
	guest  func(t *testing.T) guest.Files
}

func chosen(t *testing.T) hypervisor {
	t.Helper()
	switch name := os.Getenv("CHP_SYSTEMD_HYPERVISOR"); name {
	case "fake":
		return hypervisor{
			config: "{driver: cloud-hypervisor, cloudHypervisor: {binary: /nested/bin/fake-cloud-hypervisor}}",
			login:  "fake-guest login:", typed: "echo\n", answer: "echo", guest: tiny,
		}
	case "qemu":
		return hypervisor{
			config: "{driver: qemu}", login: "guest: ready login:",
			typed: "echo still-$REMEMBERED\n", answer: "still-here", guest: linux,
		}
	default:
		t.Fatalf("CHP_SYSTEMD_HYPERVISOR is %q", name)
		return hypervisor{}
	}
}

// tiny is a guest that only the fake boots.
func tiny(t *testing.T) guest.Files {
	t.Helper()
	dir := t.TempDir()
	f := guest.Files{Arch: "amd64", Kernel: filepath.Join(dir, "k"), Initramfs: filepath.Join(dir, "i"), RootDisk: filepath.Join(dir, "r")}
	for _, path := range []string{f.Kernel, f.Initramfs, f.RootDisk} {
		if err := os.WriteFile(path, bytes.Repeat([]byte(filepath.Base(path)), 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func linux(t *testing.T) guest.Files {
	t.Helper()
	f, err := guest.Open("/nested/guest")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// run runs a command and returns what it prints.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func systemctl(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "/usr/bin/systemctl", args...)
}

func property(t *testing.T, unit, name string) string {
	t.Helper()
	return systemctl(t, "show", "--value", "-p", name, unit)
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came about: %s", what)
		}
	}
}

// dial opens the IRI once; it does not wait for the socket.
func dial(t *testing.T) iri.MachineRuntimeClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+iriSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return iri.NewMachineRuntimeClient(conn)
}

// version asks a fresh connection, at once: a unit that is started must answer.
func version(t *testing.T) string {
	t.Helper()
	answer, err := dial(t).Version(t.Context(), &iri.VersionRequest{})
	if err != nil {
		t.Fatalf("the unit is started and does not answer: %v", err)
	}
	return answer.RuntimeVersion
}

func state(t *testing.T, id string) string {
	t.Helper()
	answer, err := dial(t).ListMachines(t.Context(), &iri.ListMachinesRequest{Filter: &iri.MachineFilter{Id: id}})
	if err != nil || len(answer.Machines) == 0 {
		return fmt.Sprintf("unknown (%v)", err)
	}
	return answer.Machines[0].Status.State.String()
}

// install writes the configuration and starts the unit, and returns a machine's id once its guest is up.
func install(t *testing.T, h hypervisor) string {
	t.Helper()
	server, err := registry.Start(t.Context(), registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	ref := server.Host() + "/test/guest:1"
	if _, err := guest.Push(t.Context(), h.guest(t), ref, guest.PushOptions{PlainHTTP: true}); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(configPath), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(configPath, fmt.Appendf(nil, daemonConfig, h.config, server.Host()), 0o640); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command("/usr/bin/journalctl", "--no-pager", "-o", "cat", "-u", unit, "-n", "150").CombinedOutput()
			t.Logf("journal of %s:\n%s", unit, out)
		}
	})
	systemctl(t, "daemon-reload")
	systemctl(t, "enable", "--now", unit)
	version(t)
	answer, err := dial(t).CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: &iri.Machine{
		Metadata: &metaapi.ObjectMetadata{Labels: map[string]string{"machinepoollet.ironcore.dev/machine-uid": "unit"}},
		Spec: &iri.MachineSpec{
			Class: "small", NetworkInterfaces: []*iri.NetworkInterface{{Name: "primary"}},
			Volumes: []*iri.Volume{{Name: "root", Device: "oda", LocalDisk: &iri.LocalDisk{Image: &iri.ImageSpec{Image: ref}}}},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	id := answer.Machine.Metadata.Id
	eventually(t, "the guest is up", func() bool { return logins(id, h) == 1 })
	eventually(t, "the machine is running", func() bool { return state(t, id) == "MACHINE_RUNNING" })
	return id
}

// logins counts how often the guest came up.
func logins(id string, h hypervisor) int {
	raw, _ := os.ReadFile(filepath.Join(stateDir, "machines", id, "console.log"))
	return bytes.Count(raw, []byte(h.login))
}

// speaks types on the guest's console and waits for its answer.
func speaks(t *testing.T, id, typed, answer string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var conn net.Conn
	eventually(t, "the console is open", func() (ok bool) {
		var err error
		conn, err = console.Dial(ctx, filepath.Join(runtimeDir, "console.sock"), id, console.AttachOptions{TakeOver: true})
		return err == nil
	})
	defer func() { _ = conn.Close() }()
	go func() {
		for ctx.Err() == nil {
			if _, err := conn.Write([]byte(typed)); err != nil {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
		}
	}()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if strings.Contains(lines.Text(), answer) {
			return
		}
	}
	t.Fatalf("the guest does not answer %q: %v", answer, lines.Err())
}

// process is one process, told apart from a later one of the same number.
type process struct {
	pid     int
	started string
	unit    string // its incarnation
}

func (p process) String() string {
	return fmt.Sprintf("%d, started at %s, in %s", p.pid, p.started, p.unit)
}

// mainProcess looks at the main process of a unit.
func mainProcess(t *testing.T, unit string) process {
	t.Helper()
	pid, err := strconv.Atoi(property(t, unit, "MainPID"))
	if err != nil || pid == 0 {
		return process{}
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	return process{pid: pid, started: fields[19], unit: property(t, unit, "InvocationID")}
}

// processes lists what is in a unit's cgroup.
func processes(t *testing.T, unit string) []string {
	t.Helper()
	group := property(t, unit, "ControlGroup")
	if group == "" {
		group = "/system.slice/" + unit
	}
	raw, _ := os.ReadFile(filepath.Join(cgroups, group, "cgroup.procs"))
	return strings.Fields(string(raw))
}
