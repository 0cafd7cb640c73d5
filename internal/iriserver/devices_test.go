// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

func TestTheStatusListsWhatIsWantedAndThenWhatIsStillLeaving(t *testing.T) {
	m := &machine.Machine{
		Desired: machine.Desired{
			Volumes: []machine.Volume{{Name: "z"}, {Name: "a"}}, NICs: []machine.NetworkInterface{{Name: "n"}, {Name: "b"}},
		},
		Record: machine.Record{
			Volumes: map[string]machine.VolumeRecord{
				"a": {Handle: "ha", Attached: true, Given: true}, "x": {Handle: "hx", Given: true}, "c": {Handle: "hc"},
				"kept": {Handle: "k", RetiredAt: time.Now()}, "doomed": {Doomed: true},
			},
			NICs: map[string]machine.NICRecord{"b": {Handle: "hb", Attached: true}, "y": {Handle: "hy"}, "d": {Handle: "hd"}, "n": {Handle: "hn"}},
		},
	}
	got := statusAnswer(m)
	var seen []string
	for _, v := range got.Volumes {
		seen = append(seen, fmt.Sprint(v.Name, " ", v.Handle, " ", v.State))
	}
	for _, n := range got.NetworkInterfaces {
		seen = append(seen, fmt.Sprint(n.Name, " ", n.Handle, " ", n.State))
	}
	const pending, attached = "VOLUME_PENDING", "VOLUME_ATTACHED"
	if diff := cmp.Diff([]string{
		"z  " + pending, "a ha " + attached, "c hc " + pending, "x hx " + pending,
		"n hn NETWORK_INTERFACE_PENDING", "b hb NETWORK_INTERFACE_ATTACHED", "d hd NETWORK_INTERFACE_PENDING", "y hy NETWORK_INTERFACE_PENDING",
	}, seen); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAVolumeIsNeverSmallerThanItWasMade(t *testing.T) {
	r := newRig(t, nil)
	m := r.new("u")
	m.Spec.Volumes[1].LocalDisk.SizeBytes = 0 // whatever it is
	answer, err := r.client.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: m})
	if err != nil {
		t.Fatal(err)
	}
	id := answer.Machine.Metadata.Id
	_, err = r.store.UpdateRecord(t.Context(), id, func(rec *machine.Record) error {
		rec.Volumes = map[string]machine.VolumeRecord{"scratch": {Handle: "h", SizeBytes: 500 << 20}}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int64]codes.Code{0: codes.OK, 1: codes.InvalidArgument, 500<<20 - 512: codes.InvalidArgument} {
		v := m.Spec.Volumes[1]
		v.LocalDisk.SizeBytes = size
		_, err := r.client.UpdateVolume(t.Context(), &iri.UpdateVolumeRequest{MachineId: id, Volume: v})
		if status.Code(err) != want {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	v := m.Spec.Volumes[1]
	v.LocalDisk.SizeBytes = 500<<20 - 1 // of the same last sector
	if _, err := r.client.UpdateVolume(t.Context(), &iri.UpdateVolumeRequest{MachineId: id, Volume: v}); err != nil {
		t.Error(err)
	}
}

func TestADiskKeepsTheImageThatItBeganAs(t *testing.T) {
	r := newRig(t, nil)
	m := r.new("u")
	answer, err := r.client.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: m})
	if err != nil {
		t.Fatal(err)
	}
	id, root, scratch := answer.Machine.Metadata.Id, m.Spec.Volumes[0], m.Spec.Volumes[1]
	update := func(v *iri.Volume, image *iri.ImageSpec) error {
		v.LocalDisk.Image = image
		_, err := r.client.UpdateVolume(t.Context(), &iri.UpdateVolumeRequest{MachineId: id, Volume: v})
		return err
	}
	was := root.LocalDisk.Image
	for name, err := range map[string]error{
		"another image":             update(root, &iri.ImageSpec{Image: "registry.example/image:2"}),
		"no image any more":         update(root, nil),
		"an image for an empty one": update(scratch, was),
	} {
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "volume.local_disk.image") || !strings.Contains(err.Error(), "attach another volume instead") {
			t.Errorf("%s: %v", name, err)
		}
	}
	root.LocalDisk.SizeBytes = 8 << 30
	if err := update(root, was); err != nil {
		t.Error(err)
	}
	if stored, err := r.store.Get(id); err != nil || *stored.Desired.Volumes[0].LocalDisk.Image != was.Image {
		t.Errorf("%v", err)
	}
}

func TestDevicesThatAreAttachedAtOnceAreAllThere(t *testing.T) {
	r := newRig(t, nil)
	answer, err := r.client.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: r.new("u")})
	if err != nil {
		t.Fatal(err)
	}
	id := answer.Machine.Metadata.Id
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			_, err := r.client.AttachVolume(context.Background(), &iri.AttachVolumeRequest{
				MachineId: id, Volume: &iri.Volume{Name: fmt.Sprint("v", i), LocalDisk: &iri.LocalDisk{}},
			})
			_, nic := r.client.AttachNetworkInterface(context.Background(), &iri.AttachNetworkInterfaceRequest{
				MachineId: id, NetworkInterface: &iri.NetworkInterface{Name: fmt.Sprint("n", i)},
			})
			if err := errors.Join(err, nic); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	m, err := r.store.Get(id)
	if err != nil || len(m.Desired.Volumes) != 10 || len(m.Desired.NICs) != 9 || m.Desired.Generation != 17 {
		t.Errorf("%d volumes, %d interfaces, generation %d, %v", len(m.Desired.Volumes), len(m.Desired.NICs), m.Desired.Generation, err)
	}
}

// picky refuses what its error says.
type picky struct {
	network.Plugin
	err func(nics []network.Interface) error
}

func (p picky) Validate(_ string, nics []network.Interface) error { return p.err(nics) }

func TestWhatTheNetworkSaysAgainstOneMoreInterfaceNamesIt(t *testing.T) {
	var say func([]network.Interface) error
	r := newRig(t, func(o *Options) {
		o.Network = picky{o.Network, func(nics []network.Interface) error {
			if len(nics) < 2 {
				return nil
			}
			return say(nics)
		}}
	})
	answer, err := r.client.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: r.new("u")})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err  error
		code codes.Code
		text string
	}{
		{&network.FieldError{Index: 1, Field: "ips[0]", Message: "is no address here"}, codes.InvalidArgument, "network_interface.ips[0]: is no address here"},
		{&network.FieldError{Index: 1, Message: "is too much"}, codes.InvalidArgument, "network_interface: is too much"},
		{&network.FieldError{Index: 0, Field: "ips[0]", Message: "is used twice"}, codes.InvalidArgument, "network_interface: network_interfaces[0].ips[0]: is used twice"},
		{errors.New("no answer"), codes.Unavailable, "no answer"},
	} {
		say = func([]network.Interface) error { return c.err }
		_, err := r.client.AttachNetworkInterface(t.Context(), &iri.AttachNetworkInterfaceRequest{
			MachineId: answer.Machine.Metadata.Id, NetworkInterface: &iri.NetworkInterface{Name: "second"},
		})
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}
