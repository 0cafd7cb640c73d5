// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"testing"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
)

// TestDevicesComeAndGoWhileTheGuestRuns attaches, grows and detaches under a guest, kills the daemon in between, and
// replaces a device in the way that the machinepoollet does.
func TestDevicesComeAndGoWhileTheGuestRuns(t *testing.T) {
	binary, _, _ := programs(t)
	registryHost, ref := serve(t)
	for _, b := range backends(t) {
		t.Run(b.name, func(t *testing.T) {
			d := newDaemon(t, binary, registryHost, b.args...)
			d.start()
			comeAndGo(t, d, b, ref)
			d.sigterm()
		})
	}
}

func comeAndGo(t *testing.T, d *daemon, b backend, ref string) {
	ctx := t.Context()
	id := d.create(newMachine(ref, "devices"))
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	d.says(id, b.login, 1)
	pid := d.vmm(id)
	more := &iri.Volume{Name: "more", Device: "odm", LocalDisk: &iri.LocalDisk{SizeBytes: 8 << 20}}
	second := &iri.NetworkInterface{Name: "second"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	attach := func(v *iri.Volume) {
		t.Helper()
		_, err := d.AttachVolume(ctx, &iri.AttachVolumeRequest{MachineId: id, Volume: v})
		must(err)
	}
	detach := func(name string) {
		t.Helper()
		_, err := d.DetachVolume(ctx, &iri.DetachVolumeRequest{MachineId: id, Name: name})
		must(err)
	}
	attach(more)
	_, err := d.AttachNetworkInterface(ctx, &iri.AttachNetworkInterfaceRequest{MachineId: id, NetworkInterface: second})
	must(err)
	d.has(id, []string{"root", "data", "more"}, []string{"primary", "second"})
	d.sees(id, b, 8<<20)

	more.LocalDisk.SizeBytes = 16 << 20
	_, err = d.UpdateVolume(ctx, &iri.UpdateVolumeRequest{MachineId: id, Volume: more})
	must(err)
	d.has(id, []string{"root", "data", "more"}, []string{"primary", "second"})
	d.sees(id, b, 16<<20)

	more.LocalDisk.SizeBytes = 32 << 20
	detach("more")
	attach(more) // within a moment, as the machinepoollet does for another size
	d.sees(id, b, 32<<20)
	detach("more")
	d.sigkill()
	d.start()
	d.has(id, []string{"root", "data"}, []string{"primary", "second"})
	_, err = d.DetachNetworkInterface(ctx, &iri.DetachNetworkInterfaceRequest{MachineId: id, Name: "second"})
	must(err)
	d.has(id, []string{"root", "data"}, []string{"primary"})
	if now := d.vmm(id); now != pid {
		t.Errorf("the VMM's pid was %d and is %d", pid, now)
	}
	if b.guest {
		for _, what := range []string{"guest: disk+ ", "guest: disk- ", "guest: net+ ", "guest: net- "} {
			d.says(id, what, 1)
		}
	}
	d.tells(id, "the guest has let go of volume more")
	d.gone(id)
	d.audit(0)
}

// has waits until the status lists exactly these devices, and all of them as attached.
func (d *daemon) has(id string, volumes, nics []string) {
	d.t.Helper()
	last := ""
	defer func() {
		if d.t.Failed() {
			d.t.Log("last seen: ", last)
		}
	}()
	d.until(fmt.Sprintf("devices %v %v", volumes, nics), func() bool {
		m := d.get(id)
		last = fmt.Sprint(m.GetStatus())
		var vols, ifs []string
		for _, v := range m.Status.Volumes {
			if v.State == iri.VolumeState_VOLUME_ATTACHED {
				vols = append(vols, v.Name)
			}
		}
		for _, n := range m.Status.NetworkInterfaces {
			if n.State == iri.NetworkInterfaceState_NETWORK_INTERFACE_ATTACHED {
				ifs = append(ifs, n.Name)
			}
		}
		return m.Status.ObservedGeneration == m.Metadata.Generation && slices.Equal(vols, volumes) && slices.Equal(ifs, nics) &&
			len(m.Status.Volumes) == len(volumes) && len(m.Status.NetworkInterfaces) == len(nics)
	})
}

// sees expects the guest, if it is a real one, to say that a disk has so many bytes.
func (d *daemon) sees(id string, b backend, bytes int64) {
	d.t.Helper()
	if b.guest {
		d.says(id, fmt.Sprintf("bytes=%d", bytes), 1)
	}
}
