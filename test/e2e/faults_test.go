// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/conformance"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/registry"
)

func TestTheWholeDaemonKeepsTheContract(t *testing.T) {
	binary, _, fake := programs(t)
	registryHost, ref := serve(t)
	d := newDaemon(t, binary, registryHost, fakeBackend(fake).args...)
	d.start()
	before := len(d.files())
	conformance.Run(t, conformance.Suite{Client: d, Class: "small", Image: ref, Works: true, HotPlug: true})
	d.audit(before)
	d.sigterm()
}

// TestAKillOfTheDaemonAtAnyStepConverges lets the real process die by SIGKILL at each step and a second one finish.
func TestAKillOfTheDaemonAtAnyStepConverges(t *testing.T) {
	_, binary, fake := programs(t)
	registryHost, ref := serve(t)
	points := []string{"vmm.launch:intended", "vmm.launch:spawned"}
	for _, step := range reconcile.StepNames() {
		switch step {
		// These need a guest that misbehaves or has an agent, or a change of mind; see package reconcile.
		case reconcile.StepGuestResume, reconcile.StepGuestStopped, reconcile.StepVMMKill, reconcile.StepGuestShutdown, reconcile.StepShutdownCancel:
		default:
			points = append(points, string(step)+":before", string(step)+":after")
		}
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			d := newDaemon(t, binary, registryHost, fakeBackend(fake).args...)
			d.env = []string{"CHP_FAILPOINTS=" + point + "=kill"}
			d.start()
			id := d.createUnlessKilled(newMachine(ref, "killed"))
			if deletes(point) {
				d.state(id, iri.MachineState_MACHINE_RUNNING)
				_, _ = d.DeleteMachine(t.Context(), &iri.DeleteMachineRequest{MachineId: id}) // the answer may be lost
			}
			if plugs(point) {
				d.state(id, iri.MachineState_MACHINE_RUNNING)
				d.plugUnlessKilled(id)
			}
			d.diesBySIGKILL()
			d.env = nil
			d.start()
			if !deletes(point) {
				if again := d.create(newMachine(ref, "killed")); id != "" && again != id {
					t.Errorf("asked again, another machine was made: %s and %s", id, again)
				} else {
					id = again
				}
				d.state(id, iri.MachineState_MACHINE_RUNNING)
				d.until("one VMM", func() bool { return len(d.vmms(id)) == 1 })
				_, err := d.DeleteMachine(t.Context(), &iri.DeleteMachineRequest{MachineId: id})
				if err != nil {
					t.Fatal(err)
				}
			}
			d.until("machine gone", func() bool { return d.get(id) == nil })
			d.audit(0)
			d.sigterm()
		})
	}
}

// createUnlessKilled is create for a daemon that may die before it answers; the id is then empty.
func (d *daemon) createUnlessKilled(m *iri.Machine) string {
	answer, err := d.CreateMachine(d.t.Context(), &iri.CreateMachineRequest{Machine: m})
	if err != nil && status.Code(err) != codes.Unavailable {
		d.t.Fatal(err)
	}
	return answer.GetMachine().GetMetadata().GetId()
}

// deletes reports whether a step is reached by a deletion alone.
func deletes(point string) bool {
	for _, step := range []reconcile.StepName{
		reconcile.StepShutdownBegin, reconcile.StepPowerButton, reconcile.StepVMMStop, reconcile.StepVMMReap, reconcile.StepNICRelease, reconcile.StepVolumeDelete,
		reconcile.StepDirectoryRemove, reconcile.StepRecordRemove,
	} {
		if strings.HasPrefix(point, string(step)+":") {
			return true
		}
	}
	return false
}

// plugs reports whether a step is reached by a change of devices alone.
func plugs(point string) bool {
	for _, step := range []reconcile.StepName{
		reconcile.StepVolumeAttach, reconcile.StepVolumeResize, reconcile.StepVolumeDetach, reconcile.StepVolumeRelease,
		reconcile.StepNICAttach, reconcile.StepNICDetach,
	} {
		if strings.HasPrefix(point, string(step)+":") {
			return true
		}
	}
	return false
}

// plugUnlessKilled attaches a volume and an interface, grows the one and detaches both, for a daemon that may die on
// the way.
func (d *daemon) plugUnlessKilled(id string) {
	d.t.Helper()
	ctx := d.t.Context()
	v := &iri.Volume{Name: "plugged", Device: "odp", LocalDisk: &iri.LocalDisk{SizeBytes: 8 << 20}}
	nic := &iri.NetworkInterface{Name: "plugged"}
	settled := func(n int) { // the answer of a daemon that is dead says so
		d.until("devices settled", func() bool {
			answer, err := d.ListMachines(ctx, &iri.ListMachinesRequest{Filter: &iri.MachineFilter{Id: id}})
			if err != nil {
				return true
			}
			attached := 0
			status := answer.Machines[0].Status
			for _, v := range status.Volumes {
				if v.Name == "plugged" && v.State == iri.VolumeState_VOLUME_ATTACHED {
					attached++
				}
			}
			for _, n := range status.NetworkInterfaces {
				if n.Name == "plugged" && n.State == iri.NetworkInterfaceState_NETWORK_INTERFACE_ATTACHED {
					attached++
				}
			}
			return attached == n && status.ObservedGeneration == answer.Machines[0].Metadata.Generation
		})
	}
	_, _ = d.AttachVolume(ctx, &iri.AttachVolumeRequest{MachineId: id, Volume: v})
	_, _ = d.AttachNetworkInterface(ctx, &iri.AttachNetworkInterfaceRequest{MachineId: id, NetworkInterface: nic})
	settled(2)
	v.LocalDisk.SizeBytes = 16 << 20
	_, _ = d.UpdateVolume(ctx, &iri.UpdateVolumeRequest{MachineId: id, Volume: v})
	settled(2)
	_, _ = d.DetachVolume(ctx, &iri.DetachVolumeRequest{MachineId: id, Name: "plugged"})
	_, _ = d.DetachNetworkInterface(ctx, &iri.DetachNetworkInterfaceRequest{MachineId: id, Name: "plugged"})
	settled(0)
}

func TestASecondDaemonOnTheSameDirectoryIsRefused(t *testing.T) {
	binary, _, fake := programs(t)
	d := newDaemon(t, binary, "127.0.0.1:1", fakeBackend(fake).args...)
	d.start()
	out, err := exec.Command(binary, append([]string{"serve", "--config", d.path("config.yaml")}, d.args...)...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another daemon") {
		t.Errorf("the second daemon: %v\n%s", err, out)
	}
	d.sigterm()
}

func TestAnImageFromDebiansRegistry(t *testing.T) {
	binary, _, fake := programs(t)
	server, err := registry.StartDebian(t.Context(), registry.DebianOptions{StorageDir: t.TempDir(), CacheDir: guest.DefaultCacheDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	d := newDaemon(t, binary, server.Host(), fakeBackend(fake).args...)
	d.start()
	id := d.create(newMachine(push(t, server.Host()), "debian"))
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	d.tells(id, "is here")
	d.gone(id)
	d.audit(0)
	d.sigterm()
}

func TestAnImageThatDoesNotExistIsToldAndRetried(t *testing.T) {
	binary, _, fake := programs(t)
	server, err := registry.Start(t.Context(), registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	d := newDaemon(t, binary, server.Host(), append(fakeBackend(fake).args, "--reconcile-max-backoff", "2s")...)
	d.start()
	id := d.create(newMachine(server.Host()+"/test/guest:1", "late"))
	d.until("the condition says why", func() bool {
		for _, c := range d.get(id).Status.MachineConditions {
			if c.Reason == "PullImageFailed" && c.Status == "False" {
				return true
			}
		}
		return false
	})
	d.tells(id, "pull image")
	push(t, server.Host())
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	d.gone(id)
	d.sigterm()
}

func TestAFullDiskRefusesCreateAndHealsByItself(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	binary, _, fake := programs(t)
	registryHost, ref := serve(t)
	d := newDaemon(t, binary, registryHost, fakeBackend(fake).args...)
	if err := os.Mkdir(d.path("state"), 0o750); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", d.path("state")).CombinedOutput(); err != nil {
		t.Skipf("cannot mount a small file system here: %s", out)
	}
	t.Cleanup(func() { d.sigkill(); _ = exec.Command("umount", "-l", d.path("state")).Run() })
	d.start()
	first := d.create(newMachine(ref, "first"))
	d.state(first, iri.MachineState_MACHINE_RUNNING)
	fill(t, d.path("state", "ballast"))
	var err error
	for i := range 200 { // what the store has in reserve is used up first
		m := newMachine(ref, "more"+strings.Repeat("x", i))
		m.Metadata.Annotations = map[string]string{"ballast": strings.Repeat("x", 200<<10)}
		if _, err = d.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: m}); err != nil {
			break
		}
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("create on a full disk: %v", err)
	}
	d.gone(first) // deleting goes on
	if err := os.Remove(d.path("state", "ballast")); err != nil {
		t.Fatal(err)
	}
	d.until("create works again", func() bool {
		answer, err := d.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: newMachine(ref, "second")})
		if err != nil {
			return false
		}
		d.state(answer.Machine.Metadata.Id, iri.MachineState_MACHINE_RUNNING)
		return true
	})
	list, err := d.ListMachines(t.Context(), &iri.ListMachinesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Machines {
		d.gone(m.Metadata.Id)
	}
	d.audit(0)
	d.sigterm()
}

// fill writes a file until no byte is left.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, size := range []int{1 << 20, 4096, 1} {
		block := make([]byte, size)
		for {
			if _, err := f.Write(block); err != nil {
				break
			}
		}
	}
}
