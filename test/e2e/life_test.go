// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	metaapi "github.com/ironcore-dev/ironcore/iri/apis/meta/v1alpha1"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/registry"
)

// built are the programs under test, built once.
var built struct {
	once                    sync.Once
	dir                     string
	daemon, failpoint, fake string
	err                     error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// programs builds the programs under test, or takes those in $CHP_E2E_BIN_DIR, for a machine without a compiler.
func programs(t *testing.T) (daemon, failpoint, fake string) {
	t.Helper()
	if dir := os.Getenv("CHP_E2E_BIN_DIR"); dir != "" {
		return filepath.Join(dir, "daemon"), filepath.Join(dir, "daemon-failpoints"), filepath.Join(dir, "fake-cloud-hypervisor")
	}
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "chp-bin"); built.err != nil {
			return
		}
		built.daemon, built.failpoint = filepath.Join(built.dir, "daemon"), filepath.Join(built.dir, "daemon-failpoints")
		for path, tags := range map[string]string{built.daemon: "", built.failpoint: "failpoints"} {
			cmd := exec.Command("go", "build", "-tags", tags, "-o", path, "../../cmd/cloud-hypervisor-provider")
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				built.err = fmt.Errorf("build: %w\n%s", err, out)
				return
			}
		}
		built.fake, built.err = fakech.Build(context.Background(), built.dir)
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.daemon, built.failpoint, built.fake
}

// backend is a hypervisor to run the same scenario on.
type backend struct {
	name  string
	args  []string
	guest bool   // a real guest boots
	login string // what the console says when it is up
}

func backends(t *testing.T) []backend {
	_, _, fake := programs(t)
	list := []backend{
		{name: "qemu", args: []string{"--hypervisor", "qemu"}, guest: true, login: "guest: ready login:"},
		fakeBackend(fake),
	}
	real, err := host.FindCloudHypervisor(t.Context(), "")
	if err != nil {
		t.Logf("NOT RUN on the real Cloud Hypervisor: %v", err)
		return list
	}
	if kvm := host.ProbeKVM(t.Context()); !kvm.Usable {
		t.Logf("NOT RUN on the real Cloud Hypervisor %s: %s", real.Version, kvm.Reason)
		return list
	}
	onReal := []string{"--hypervisor", "cloud-hypervisor"}
	return append(list,
		backend{name: "cloud-hypervisor", args: onReal, guest: true, login: "guest: ready login:"},
		backend{
			name: "cloud-hypervisor with a config disk", args: append(onReal, "--hypervisor-ignition", "disk"),
			guest: true, login: "guest: ready login:",
		})
}

func fakeBackend(fake string) backend {
	return backend{
		name: "fake", args: []string{"--hypervisor", "cloud-hypervisor", "--cloud-hypervisor-binary", fake}, login: "fake-guest login:",
	}
}

// serve starts a registry with the test guest in it and returns its host and the image's reference.
func serve(t *testing.T) (host, ref string) {
	t.Helper()
	server, err := registry.Start(t.Context(), registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server.Host(), push(t, server.Host())
}

func push(t *testing.T, host string) string {
	t.Helper()
	files, err := testGuest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ref := host + "/test/guest:1"
	if _, err := guest.Push(t.Context(), files, ref, guest.PushOptions{PlainHTTP: true}); err != nil {
		t.Fatal(err)
	}
	return ref
}

// testGuest builds the guest, or takes the one in $CHP_GUEST_DIR.
func testGuest(ctx context.Context) (guest.Files, error) {
	if dir := os.Getenv("CHP_GUEST_DIR"); dir != "" {
		return guest.Open(dir)
	}
	return guest.Build(ctx, guest.Options{CacheDir: guest.DefaultCacheDir()})
}

const payload = `{"ignition":{"version":"3.4.0"},"note":"read back from the guest"}`

func newMachine(ref, uid string) *iri.Machine {
	return &iri.Machine{
		Metadata: &metaapi.ObjectMetadata{Labels: map[string]string{"machinepoollet.ironcore.dev/machine-uid": uid}},
		Spec: &iri.MachineSpec{
			Class: "small", IgnitionData: []byte(payload),
			Volumes: []*iri.Volume{
				{Name: "root", Device: "oda", LocalDisk: &iri.LocalDisk{Image: &iri.ImageSpec{Image: ref}}},
				{Name: "data", Device: "odb", LocalDisk: &iri.LocalDisk{SizeBytes: 24 << 20}},
			},
			NetworkInterfaces: []*iri.NetworkInterface{{Name: "primary"}},
		},
	}
}

func (d *daemon) create(m *iri.Machine) string {
	d.t.Helper()
	answer, err := d.CreateMachine(d.t.Context(), &iri.CreateMachineRequest{Machine: m})
	if err != nil {
		d.t.Fatal(err)
	}
	return answer.Machine.Metadata.Id
}

func TestFromCreateMachineToABootedGuestAndBack(t *testing.T) {
	binary, _, _ := programs(t)
	registryHost, ref := serve(t)
	for _, b := range backends(t) {
		t.Run(b.name, func(t *testing.T) {
			d := newDaemon(t, binary, registryHost, b.args...)
			d.start()
			life(t, d, b, ref)
			d.sigterm()
		})
	}
}

// life is one machine from its creation to its deletion, with everything happening to it in between.
func life(t *testing.T, d *daemon, b backend, ref string) {
	before := len(d.files())
	id := d.create(newMachine(ref, "life"))
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	d.says(id, b.login, 1)
	d.readsIgnition(id, b)
	d.attached(id)
	d.lists(id, b)
	pid := d.vmm(id)

	d.sigkill() // the daemon, not the guest
	d.start()
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	d.types(id, b)
	if now := d.vmm(id); now != pid {
		t.Errorf("the VMM's pid was %d and is %d", pid, now)
	}

	d.killVMM(pid)
	d.until("another VMM", func() bool { p := d.vmms(id); return len(p) == 1 && p[0] != pid })
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	d.says(id, b.login, 2)
	d.tells(id, "SIGKILL", "exit status not known") // the second when the VMM was adopted and is nobody's child here

	d.power(id, iri.Power_POWER_OFF)
	d.state(id, iri.MachineState_MACHINE_SUSPENDED)
	if pids := d.vmms(id); len(pids) > 0 {
		t.Errorf("processes of a machine that is off: %v", pids)
	}
	d.power(id, iri.Power_POWER_ON)
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	d.says(id, b.login, 3)
	if b.guest {
		d.says(id, "guest: boot-count 3", 1) // the disk lived through all of it
	}
	d.gone(id)
	d.audit(before)
}

// readsIgnition expects the payload as the guest found it.
func (d *daemon) readsIgnition(id string, b backend) {
	d.t.Helper()
	encoded := base64.StdEncoding.EncodeToString([]byte(payload))
	if b.guest {
		d.says(id, "guest: ignition-data "+encoded, 1)
		return
	}
	d.says(id, "oem: opt/com.coreos/config="+encoded, 1)
}

// lists runs the commands by which an operator looks at the machine.
func (d *daemon) lists(id string, b backend) {
	d.t.Helper()
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"machines"}, []string{"MACHINE", id, "Running", "small"}},
		{[]string{"machines", "-o", "json", id}, []string{`"id"`, id, "MACHINE_RUNNING"}},
		{[]string{"events", id}, []string{"MESSAGE", id, "MachineBooted"}},
		{[]string{"console", "--log", id}, []string{b.login}},
		{[]string{"__complete", "machines", "--config", d.path("config.yaml"), ""}, []string{id}},
	} {
		args := c.args
		if args[0] != "__complete" {
			args = append(args, "--config", d.path("config.yaml"))
		}
		out, err := exec.Command(d.binary, args...).CombinedOutput()
		for _, want := range c.want {
			if err != nil || !strings.Contains(string(out), want) {
				d.t.Errorf("%v does not show %q (%v):\n%s", c.args, want, err, out)
			}
		}
	}
}

func (d *daemon) attached(id string) {
	d.t.Helper()
	status := d.get(id).Status
	for _, v := range status.Volumes {
		if v.State != iri.VolumeState_VOLUME_ATTACHED || v.Handle == "" {
			d.t.Errorf("volume %v", v)
		}
	}
	for _, n := range status.NetworkInterfaces {
		if n.State != iri.NetworkInterfaceState_NETWORK_INTERFACE_ATTACHED || n.Handle == "" {
			d.t.Errorf("network interface %v", n)
		}
	}
}

// types proves that the daemon holds the guest: it types on the console and reads the answer.
func (d *daemon) types(id string, b backend) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	var conn net.Conn
	d.until("console open", func() (ok bool) { // a daemon that was just started first connects to the VMM
		var err error
		conn, err = console.Dial(ctx, d.path("run", "console.sock"), id, console.AttachOptions{})
		return err == nil
	})
	defer func() { _ = conn.Close() }()
	typed, want := "echo alive-$((40+2))\n", "alive-42"
	if !b.guest {
		want = "alive-" // the fake guest echoes
	}
	go func() { // typed again and again, since a console may not be connected yet
		for ctx.Err() == nil {
			if _, err := conn.Write([]byte(typed)); err != nil {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Second):
			}
		}
	}()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	lines := bufio.NewReader(conn)
	for {
		line, err := lines.ReadString('\n')
		if strings.Contains(line, want) {
			return
		}
		if err != nil {
			d.t.Fatalf("the guest does not answer on its console: %v", err)
		}
	}
}

func (d *daemon) power(id string, p iri.Power) {
	d.t.Helper()
	if _, err := d.UpdateMachinePower(d.t.Context(), &iri.UpdateMachinePowerRequest{MachineId: id, Power: p}); err != nil {
		d.t.Fatal(err)
	}
}

// tells expects an event whose message has one of the texts.
func (d *daemon) tells(id string, texts ...string) {
	d.t.Helper()
	answer, err := d.ListEvents(d.t.Context(), &iri.ListEventsRequest{Filter: &iri.EventFilter{Id: id}})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, e := range answer.Events {
		for _, text := range texts {
			if strings.Contains(e.Spec.Message, text) {
				return
			}
		}
	}
	d.t.Errorf("no event has one of %q: %v", texts, answer.Events)
}
