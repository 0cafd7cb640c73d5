// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	metaapi "github.com/ironcore-dev/ironcore/iri/apis/meta/v1alpha1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network/networktest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane/programs"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

const apinetConfig = `apiVersion: config.cloud-hypervisor-provider.ironcore.dev/v1alpha1
kind: ProviderConfig
stateDir: %[1]s/state
runtimeDir: %[1]s/run
iri: {address: %[1]s/iri.sock}
hypervisor: {driver: qemu, supervisor: child}
network:
  plugin: apinet
  apinet:
    nodeName: node-1
    kubeconfig: %[1]s/apinet/kubeconfig
    bootstrapKubeconfig: %[1]s/bootstrap
    rotateCertificates: true
streaming: {address: "127.0.0.1:%[3]d"}
servers: {healthAddress: "127.0.0.1:%[4]d", metricsAddress: ""}
machineClasses:
  inline: [{metadata: {name: small}, capabilities: {cpu: 1, memory: 192Mi}}]
capacity: {cpuOvercommit: 32, reservedMemory: 64Mi, memoryOverheadPerMachine: 0}
images: {plainHTTP: [%[2]q]}
`

// node is a host of ironcore-net: the daemon, and its one machine.
type node struct {
	*fabric
	*daemon
	runtime iri.MachineRuntimeClient
	health  string
	id      string // of the machine
	guest   int    // the VMM's process
	handle  string
	plane   *os.File // the data plane's end of dtap-b
}

// holdTap makes a tap that goes with its descriptor.
func holdTap(t *testing.T, name string) *os.File {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), name) // now that the descriptor can be waited for
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// heard waits until the data plane gets a frame of the guest.
func (n *node) heard(t *testing.T) {
	t.Helper()
	name := tap.Name(n.id, "primary")
	device, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := n.plane.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for frame := make([]byte, 65536); ; {
		size, err := n.plane.Read(frame)
		if err != nil {
			t.Fatalf("no frame from %v: %v", device.HardwareAddr, err)
		}
		if size >= 14 && bytes.Equal(frame[6:12], device.HardwareAddr) {
			t.Logf("the data plane got %d bytes, type %x, from the guest", size, frame[12:14])
			return
		}
	}
}

func newNode(t *testing.T, binary string) *node {
	t.Helper()
	n := &node{fabric: startFabric(t)}
	n.daemon = &daemon{dir: n.Dir(), binary: binary}
	host, port := n.serveGuest(t), freePort(t)
	files, err := guest.Build(t.Context(), guest.Options{CacheDir: guest.DefaultCacheDir()})
	if err != nil {
		t.Fatal(err)
	}
	// Its interfaces say something as soon as they are there.
	talking := guest.PushOptions{PlainHTTP: true}
	talking.CommandLine = guest.DefaultCommandLine(files.Arch) + " chp.dhcp"
	if _, err := guest.Push(t.Context(), files, n.image, talking); err != nil {
		t.Fatal(err)
	}
	n.health = fmt.Sprintf("http://127.0.0.1:%d/readyz", port)
	if err := os.WriteFile(n.path("config.yaml"), fmt.Appendf(nil, apinetConfig, n.dir, host, freePort(t), port), 0o600); err != nil {
		t.Fatal(err)
	}
	n.giveToken(t)
	t.Cleanup(func() {
		if n.Process != nil {
			n.Kill()
			if t.Failed() {
				t.Logf("the end of the daemon's log:\n%s", n.Log())
			}
		}
		for _, pid := range n.guests() { // of a failed test
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	conn, err := grpc.NewClient("unix://"+n.path("iri.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	n.runtime = iri.NewMachineRuntimeClient(conn)
	n.start(t)
	return n
}

// giveToken puts a bootstrap kubeconfig where the daemon looks for it.
func (n *node) giveToken(t *testing.T) {
	t.Helper()
	if err := os.Rename(n.BootstrapKubeconfig(t, controlplane.NetworkPlugins()), n.path("bootstrap")); err != nil {
		t.Fatal(err)
	}
}

// restart kills the daemon as a crash does and starts it again.
func (n *node) restart(t *testing.T) {
	t.Helper()
	n.Kill()
	n.start(t)
}

// readiness is what the daemon says of itself.
func (n *node) readiness(t *testing.T) (code int, text string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.health, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(raw)
}

func (n *node) isReady(t *testing.T) {
	t.Helper()
	eventually(t, "the daemon is ready", func() error {
		if code, text := n.readiness(t); code != http.StatusOK {
			return fmt.Errorf("%d: %s", code, text)
		}
		return nil
	})
}

func (n *node) isNotReady(t *testing.T, because ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the daemon is not ready because of %q", because), func() error {
		code, text := n.readiness(t)
		if code != http.StatusServiceUnavailable || slices.ContainsFunc(because, func(s string) bool { return !strings.Contains(text, s) }) {
			return fmt.Errorf("%d: %s", code, text)
		}
		return nil
	})
}

// status is that of the machine; nil if there is none.
func (n *node) status(ctx context.Context) (*iri.MachineStatus, error) {
	answer, err := n.runtime.ListMachines(ctx, &iri.ListMachinesRequest{Filter: &iri.MachineFilter{Id: n.id}})
	if err != nil || len(answer.Machines) == 0 {
		return nil, err
	}
	return answer.Machines[0].Status, nil
}

// machineIs waits until the machine is as it should be.
func (n *node) machineIs(t *testing.T, what string, is func(*iri.MachineStatus) bool) *iri.MachineStatus {
	t.Helper()
	var status *iri.MachineStatus
	eventually(t, "the machine is "+what, func() error {
		var err error
		if status, err = n.status(t.Context()); err == nil && (status == nil || !is(status)) {
			err = fmt.Errorf("its status is %v", status)
		}
		return err
	})
	return status
}

// attached reports whether the only interface is.
func attached(s *iri.MachineStatus) bool {
	return s.State == iri.MachineState_MACHINE_RUNNING && len(s.NetworkInterfaces) == 1 &&
		s.NetworkInterfaces[0].State == iri.NetworkInterfaceState_NETWORK_INTERFACE_ATTACHED
}

// waits reports whether a condition says that the machine's interface is waited for: Ready before the machine is
// started, NetworkInterfacesReady while it runs.
func waits(condition, reason string) func(*iri.MachineStatus) bool {
	return func(s *iri.MachineStatus) bool {
		return slices.ContainsFunc(s.MachineConditions, func(c *iri.Conditions) bool {
			return c.Type == condition && c.Status == "False" && c.Reason == reason && strings.Contains(c.Message, "net/")
		})
	}
}

// runsOn expects that the guest has not noticed a thing.
func (n *node) runsOn(t *testing.T) {
	t.Helper()
	s := n.machineIs(t, "running", func(s *iri.MachineStatus) bool { return s.State == iri.MachineState_MACHINE_RUNNING })
	if len(s.NetworkInterfaces) != 1 || s.NetworkInterfaces[0].Handle != n.handle {
		t.Errorf("interfaces %v, the handle was %s", s.NetworkInterfaces, n.handle)
	}
	if pids := n.guests(); !slices.Equal(pids, []int{n.guest}) {
		t.Errorf("VMM processes %v, it was %d", pids, n.guest)
	}
}

// inUse waits until a VMM holds a tap, or none does.
func inUse(t *testing.T, tap string, want bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s in use: %v", tap, want), func() error {
		raw, err := os.ReadFile("/sys/class/net/" + tap + "/carrier")
		if err == nil && (strings.TrimSpace(string(raw)) == "1") != want {
			err = errNotYet
		}
		return err
	})
}

func TestADaemonOfANodeOfIronCoreNet(t *testing.T) {
	onRequest(t)
	// What has to be built is built before there is nothing but a network namespace.
	if _, err := programs.Build(t.Context(), programs.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := guest.Build(t.Context(), guest.Options{CacheDir: guest.DefaultCacheDir()}); err != nil {
		t.Fatal(err)
	}
	if !networktest.InNamespace(t) {
		return
	}
	for _, line := range []string{ // kube-apiserver does not start without a default route
		"link set lo up", "link add uplink type veth peer name outside", "address add 192.0.2.1/24 dev uplink",
		"link set uplink up", "link set outside up", "route add default via 192.0.2.2",
	} {
		networktest.IP(t, line)
	}
	// The host's data plane leaves one tap for a VMM to open, and holds the other one itself, as dpservice does.
	networktest.IP(t, "tuntap add dtap-a mode tap")
	n := newNode(t, buildDaemon(t))
	n.plane = holdTap(t, "dtap-b")
	for _, tap := range []string{"dtap-a", "dtap-b"} {
		networktest.IP(t, "link set "+tap+" up")
	}
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"a machine is pending until its interface is ready", n.pends},
		{"the daemon is killed, and declares nothing twice", n.declaresOnce},
		{"the machine runs with its tap", n.runs},
		{"the API server is away while the daemon restarts", n.outage},
		{"its address changes, with a kill in between", n.readdress},
		{"the certificate expires and the bootstrap file is gone", n.expires},
		{"with a state directory of another life nothing is deleted", n.foreignState},
		{"the machine goes when its interface has gone", n.goes},
	} {
		if !t.Run(step.name, step.run) {
			t.FailNow() // what follows builds on it
		}
	}
}

func (n *node) pends(t *testing.T) {
	n.isReady(t)
	answer, err := n.runtime.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: &iri.Machine{
		Metadata: &metaapi.ObjectMetadata{Labels: map[string]string{"machinepoollet.ironcore.dev/machine-uid": "one"}},
		Spec: &iri.MachineSpec{
			Class: "small", GuestConfig: &iri.GuestConfig{Hostname: "web"},
			Volumes:           []*iri.Volume{{Name: "root", Device: "oda", LocalDisk: &iri.LocalDisk{Image: &iri.ImageSpec{Image: n.image}}}},
			NetworkInterfaces: []*iri.NetworkInterface{{Name: "primary", NetworkId: fabricNetwork, Ips: []string{"10.0.0.1"}}},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	n.id = answer.Machine.Metadata.Id
	n.declared(t, "10.0.0.1")
	s := n.machineIs(t, "waiting for its interface", waits("Ready", "NotReady"))
	if s.State != iri.MachineState_MACHINE_PENDING {
		t.Errorf("state %v", s.State)
	}
	t.Logf("the conditions are %v", s.MachineConditions)
	if pids := n.guests(); len(pids) > 0 {
		t.Errorf("processes %v", pids)
	}
}

// declared waits for the machine's object and returns it.
func (n *node) declared(t *testing.T, ip string) *unstructured.Unstructured {
	t.Helper()
	var o *unstructured.Unstructured
	eventually(t, "the interface is declared with "+ip, func() error {
		all := n.objects(t, n.id)
		if len(all) != 1 {
			return fmt.Errorf("%d objects", len(all))
		}
		o = &all[0]
		spec := o.Object["spec"].(map[string]any)
		if got := fmt.Sprintf("%v %v %v %v", spec["ips"], spec["nodeRef"], spec["networkRef"], spec["hostname"]); got != "["+ip+"] map[name:node-1] map[name:network] web" {
			return fmt.Errorf("it is declared with %s", got)
		}
		return nil
	})
	return o
}

func (n *node) declaresOnce(t *testing.T) {
	before := n.object(t, n.id)
	n.restart(t)
	n.isReady(t)
	n.machineIs(t, "waiting for its interface", waits("Ready", "NotReady"))
	if now := n.object(t, n.id); now.GetUID() != before.GetUID() || now.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("it was %v and is %v", before, now)
	}
}

// connects has the network name a tap, and waits until the machine has it.
func (n *node) connects(t *testing.T, tap string) {
	t.Helper()
	n.reportTap(t, n.id, tap)
	s := n.machineIs(t, "running with its interface", attached)
	inUse(t, tap, true)
	o := n.object(t, n.id)
	n.handle = fmt.Sprintf("ironcore-net://net/%s/node-1/%s", o.GetName(), o.GetUID())
	if got := s.NetworkInterfaces[0].Handle; got != n.handle {
		t.Errorf("the handle is %s, want %s", got, n.handle)
	}
}

func (n *node) runs(t *testing.T) {
	n.connects(t, "dtap-a")
	eventually(t, "the guest is up", func() error {
		if !strings.Contains(n.console(), login) {
			return errNotYet
		}
		return nil
	})
	pids := n.guests()
	if len(pids) != 1 {
		t.Fatalf("VMM processes %v", pids)
	}
	n.guest = pids[0]
}

func (n *node) outage(t *testing.T) {
	n.StopAPIServer()
	n.isNotReady(t, "apinet")
	n.runsOn(t)
	n.restart(t)
	n.isNotReady(t, "apinet")
	n.runsOn(t)
	n.StartAPIServer(t)
	n.isReady(t)
	n.runsOn(t)
}

// handles looks at the machine all the time until stop is called, which tells how often the handle was empty.
func (n *node) handles(t *testing.T) (stop func() (looks, empty int)) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	looks, empty := 0, 0
	running.Go(func() {
		for ctx.Err() == nil {
			s, err := n.status(ctx)
			if err == nil && s != nil {
				for _, nic := range s.NetworkInterfaces {
					looks++
					if nic.Handle == "" {
						empty++
					}
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	return func() (int, int) {
		cancel()
		running.Wait()
		return looks, empty
	}
}

func (n *node) readdress(t *testing.T) {
	release, stop := n.hold(t, n.id), n.handles(t)
	before := n.object(t, n.id)
	if _, err := n.runtime.DetachNetworkInterface(t.Context(), &iri.DetachNetworkInterfaceRequest{MachineId: n.id, Name: "primary"}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.runtime.AttachNetworkInterface(t.Context(), &iri.AttachNetworkInterfaceRequest{
		MachineId: n.id, NetworkInterface: &iri.NetworkInterface{Name: "primary", NetworkId: fabricNetwork, Ips: []string{"10.0.0.2"}},
	}); err != nil {
		t.Fatal(err)
	}
	inUse(t, "dtap-a", false)
	eventually(t, "the old object is being deleted", func() error {
		if o := n.object(t, n.id); o.GetUID() != before.GetUID() || o.GetDeletionTimestamp() == nil {
			return fmt.Errorf("it is %v", o)
		}
		return nil
	})
	n.machineIs(t, "waiting for the old object", waits("NetworkInterfacesReady", "Deleting"))
	n.restart(t)
	n.machineIs(t, "waiting for the old object, still", waits("NetworkInterfacesReady", "Deleting"))
	release()
	n.declared(t, "10.0.0.2")
	n.connects(t, "dtap-b")
	n.heard(t)
	if looks, empty := stop(); looks == 0 || empty > 0 {
		t.Errorf("of %d looks the handle was empty in %d", looks, empty)
	}
	n.runsOn(t)
}

func (n *node) expires(t *testing.T) {
	if err := n.Stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	if err := os.Remove(n.path("apinet", "kubeconfig")); err != nil {
		t.Fatal(err)
	}
	n.SetSigner(true, 25*time.Second)
	n.start(t)
	n.isReady(t)
	n.SetSigner(false, 0)
	if err := os.Remove(n.path("bootstrap")); err != nil {
		t.Fatal(err)
	}
	n.isNotReady(t, "apinet", "the client certificate expired on", "could not be renewed")
	n.runsOn(t)
	n.restart(t)
	n.isNotReady(t, "apinet", "no good client certificate is kept", "expired on", "bootstrap", "no such file")
	n.runsOn(t)
	_, text := n.readiness(t)
	t.Logf("/readyz says:\n%s", text)
	n.SetSigner(true, time.Hour)
	n.giveToken(t)
	n.isReady(t)
	n.runsOn(t)
}

func (n *node) foreignState(t *testing.T) {
	before := n.object(t, n.id)
	if err := n.Stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	if err := os.Rename(n.path("state"), n.path("state.away")); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	n.isReady(t)
	time.Sleep(5 * time.Second) // that nothing happens cannot be waited for otherwise
	if now := n.object(t, n.id); now.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("it was %v and is %v", before, now)
	}
	if pids := n.guests(); !slices.Equal(pids, []int{n.guest}) {
		t.Errorf("VMM processes %v, it was %d", pids, n.guest)
	}
	if err := n.Stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	if err := os.RemoveAll(n.path("state")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(n.path("state.away"), n.path("state")); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	n.isReady(t)
	n.runsOn(t)
}

func (n *node) goes(t *testing.T) {
	release := n.hold(t, n.id)
	if _, err := n.runtime.DeleteMachine(t.Context(), &iri.DeleteMachineRequest{MachineId: n.id}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the object is being deleted", func() error {
		if n.object(t, n.id).GetDeletionTimestamp() == nil {
			return errNotYet
		}
		return nil
	})
	n.restart(t)
	n.machineIs(t, "terminating", func(s *iri.MachineStatus) bool { return s.State == iri.MachineState_MACHINE_TERMINATING })
	release()
	eventually(t, "the machine is gone", func() error {
		if s, err := n.status(t.Context()); err != nil || s != nil {
			return fmt.Errorf("its status is %v, %w", s, err)
		}
		return nil
	})
	n.clean(t)
	if d, err := net.InterfaceByName(tap.Name(n.id, "primary")); err == nil {
		t.Errorf("device %v is left", d)
	}
	for _, name := range []string{"dtap-a", "dtap-b"} {
		if _, err := net.InterfaceByName(name); err != nil {
			t.Errorf("the data plane's %s: %v", name, err)
		}
	}
	if left := n.objects(t, n.id); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
