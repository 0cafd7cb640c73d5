// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

func (s *Suite) attach(t *testing.T, id string, v *iri.Volume) error {
	t.Helper()
	_, err := s.Client.AttachVolume(t.Context(), &iri.AttachVolumeRequest{MachineId: id, Volume: v})
	return err
}

func (s *Suite) detach(t *testing.T, id, name string) error {
	t.Helper()
	_, err := s.Client.DetachVolume(t.Context(), &iri.DetachVolumeRequest{MachineId: id, Name: name})
	return err
}

func (s *Suite) update(t *testing.T, id string, v *iri.Volume) error {
	t.Helper()
	_, err := s.Client.UpdateVolume(t.Context(), &iri.UpdateVolumeRequest{MachineId: id, Volume: v})
	return err
}

func (s *Suite) attachNIC(t *testing.T, id string, n *iri.NetworkInterface) error {
	t.Helper()
	_, err := s.Client.AttachNetworkInterface(t.Context(), &iri.AttachNetworkInterfaceRequest{MachineId: id, NetworkInterface: n})
	return err
}

func (s *Suite) detachNIC(t *testing.T, id, name string) error {
	t.Helper()
	_, err := s.Client.DetachNetworkInterface(t.Context(), &iri.DetachNetworkInterfaceRequest{MachineId: id, Name: name})
	return err
}

// want fails the test unless an error has the code and says all of the words.
func want(t *testing.T, what string, err error, code codes.Code, words ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Fatalf("%s: want %s, got %v", what, code, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v does not say %q", what, err, w)
		}
	}
}

// spec checks the devices of a machine's spec and returns its generation.
func (s *Suite) spec(t *testing.T, id string, volumes []*iri.Volume, nics []*iri.NetworkInterface) int64 {
	t.Helper()
	m := s.one(t, id)
	if diff := gocmp.Diff(volumes, m.Spec.Volumes, protocmp.Transform()); diff != "" {
		t.Errorf("volumes (-want +got): %s", diff)
	}
	if diff := gocmp.Diff(nics, m.Spec.NetworkInterfaces, protocmp.Transform()); diff != "" {
		t.Errorf("network interfaces (-want +got): %s", diff)
	}
	return m.Metadata.Generation
}

// settled waits until the status lists exactly the names, all of them attached, where devices really come and go. On
// the way no handle of an interface that is listed all the time may become empty.
func (s *Suite) settled(t *testing.T, id string, volumes, nics []string) {
	t.Helper()
	if !s.Works || !s.HotPlug {
		return
	}
	deadline := time.Now().Add(patience)
	for {
		m := s.until(t, id, iri.MachineState_MACHINE_RUNNING)
		var vols, ifs []string
		for _, v := range m.Status.Volumes {
			if v.State == iri.VolumeState_VOLUME_ATTACHED {
				vols = append(vols, v.Name)
			} else {
				vols = append(vols, v.Name+" pending")
			}
		}
		for _, n := range m.Status.NetworkInterfaces {
			if n.State == iri.NetworkInterfaceState_NETWORK_INTERFACE_ATTACHED {
				ifs = append(ifs, n.Name)
			} else {
				ifs = append(ifs, n.Name+" pending")
			}
		}
		if slices.Equal(vols, volumes) && slices.Equal(ifs, nics) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("devices never came to %v %v; status %v", volumes, nics, m.Status)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// ready makes a machine and waits until it runs, where machines work.
func (s *Suite) ready(t *testing.T) *iri.Machine {
	t.Helper()
	m := s.create(t, s.New(uid()))
	if s.Works {
		m = s.until(t, m.Metadata.Id, iri.MachineState_MACHINE_RUNNING)
	}
	return m
}

func data(bytes int64) *iri.Volume {
	return &iri.Volume{Name: "data", Device: "odx", LocalDisk: &iri.LocalDisk{SizeBytes: bytes}}
}

func attachVolume(t *testing.T, s *Suite) {
	m := s.ready(t)
	id, before, nics := m.Metadata.Id, m.Spec.Volumes, m.Spec.NetworkInterfaces
	for round := range int64(2) { // it can come back
		v := data(8 << 20)
		want(t, "attach", s.attach(t, id, v), codes.OK)
		if got := s.spec(t, id, append(slices.Clone(before), v), nics); got != m.Metadata.Generation+2*round+1 {
			t.Errorf("generation %d after %d", got, m.Metadata.Generation)
		}
		want(t, "attach again", s.attach(t, id, v), codes.AlreadyExists, "volume.name", "data")
		other := data(8 << 20)
		other.Name = "other"
		want(t, "attach with a device that is taken", s.attach(t, id, other), codes.InvalidArgument, "volume.device", "odx")
		s.settled(t, id, []string{"root", "scratch", "data"}, []string{"primary"})
		want(t, "detach", s.detach(t, id, "data"), codes.OK)
		s.spec(t, id, before, nics)
		want(t, "detach again", s.detach(t, id, "data"), codes.NotFound)
		s.settled(t, id, []string{"root", "scratch"}, []string{"primary"})
	}
}

func attachNIC(t *testing.T, s *Suite) {
	m := s.ready(t)
	id, before := m.Metadata.Id, m.Spec.NetworkInterfaces
	n := &iri.NetworkInterface{
		Name: "second", NetworkId: before[0].NetworkId, Ips: []string{"10.0.0.77", "10.0.0.7"}, Attributes: map[string]string{"rawNICLabels": `{}`},
	}
	for range 2 {
		want(t, "attach", s.attachNIC(t, id, n), codes.OK)
		s.spec(t, id, m.Spec.Volumes, append(slices.Clone(before), n))
		want(t, "attach again", s.attachNIC(t, id, n), codes.AlreadyExists, "network_interface.name", "second")
		s.settled(t, id, []string{"root", "scratch"}, []string{"primary", "second"})
		want(t, "detach", s.detachNIC(t, id, "second"), codes.OK)
		s.spec(t, id, m.Spec.Volumes, before)
		want(t, "detach again", s.detachNIC(t, id, "second"), codes.NotFound)
		s.settled(t, id, []string{"root", "scratch"}, []string{"primary"})
	}
}

func replace(t *testing.T, s *Suite) {
	m := s.ready(t)
	id := m.Metadata.Id
	root, bigger, nic := proto.CloneOf(m.Spec.Volumes[0]), proto.CloneOf(m.Spec.Volumes[1]), proto.CloneOf(m.Spec.NetworkInterfaces[0])
	bigger.LocalDisk.SizeBytes *= 2
	root.LocalDisk.SizeBytes *= 2
	nic.Ips = []string{"10.0.0.50"}
	want(t, "detach", s.detach(t, id, "scratch"), codes.OK)
	want(t, "attach with another size", s.attach(t, id, bigger), codes.OK)
	want(t, "detach root", s.detach(t, id, "root"), codes.OK)
	want(t, "attach root with another size", s.attach(t, id, root), codes.OK)
	want(t, "detach interface", s.detachNIC(t, id, "primary"), codes.OK)
	want(t, "attach interface with another address", s.attachNIC(t, id, nic), codes.OK)
	s.spec(t, id, []*iri.Volume{bigger, root}, []*iri.NetworkInterface{nic})
	s.settled(t, id, []string{"scratch", "root"}, []string{"primary"})
	s.spec(t, id, []*iri.Volume{bigger, root}, []*iri.NetworkInterface{nic})
}

func updateVolume(t *testing.T, s *Suite) {
	m := s.ready(t)
	id, generation := m.Metadata.Id, m.Metadata.Generation
	bigger := proto.CloneOf(m.Spec.Volumes[1])
	bigger.LocalDisk.SizeBytes = 32 << 20
	for range 2 { // the second one changes nothing
		want(t, "update", s.update(t, id, bigger), codes.OK)
		if got := s.spec(t, id, []*iri.Volume{m.Spec.Volumes[0], bigger}, m.Spec.NetworkInterfaces); got != generation+1 {
			t.Errorf("generation %d after %d", got, generation)
		}
	}
	smaller, unknown, other := proto.CloneOf(bigger), proto.CloneOf(bigger), proto.CloneOf(bigger)
	smaller.LocalDisk.SizeBytes = 16 << 20
	want(t, "shrink", s.update(t, id, smaller), codes.InvalidArgument, "volume.local_disk.size_bytes")
	smaller.LocalDisk.SizeBytes = 0
	want(t, "no size where there was one", s.update(t, id, smaller), codes.InvalidArgument, "volume.local_disk.size_bytes")
	unknown.Name, unknown.Device = "unknown", ""
	want(t, "update of an unknown volume", s.update(t, id, unknown), codes.NotFound, "unknown")
	other.Device = m.Spec.Volumes[0].Device
	want(t, "the device of another", s.update(t, id, other), codes.InvalidArgument, "volume.device")
	other.LocalDisk, other.Connection = nil, &iri.VolumeConnection{Driver: "no-such-driver", Handle: "h"}
	want(t, "another kind", s.update(t, id, other), codes.InvalidArgument, "volume")
	if got := s.spec(t, id, []*iri.Volume{m.Spec.Volumes[0], bigger}, m.Spec.NetworkInterfaces); got != generation+1 {
		t.Errorf("what was refused raised the generation to %d", got)
	}
	s.settled(t, id, []string{"root", "scratch"}, []string{"primary"})
}

// calls are the five calls about devices, each as it would succeed on a new machine.
func (s *Suite) calls(t *testing.T, id string) map[string]error {
	t.Helper()
	return map[string]error{
		"AttachVolume": s.attach(t, id, data(8<<20)), "DetachVolume": s.detach(t, id, "scratch"),
		"UpdateVolume":           s.update(t, id, &iri.Volume{Name: "root", LocalDisk: &iri.LocalDisk{SizeBytes: 1 << 30}}),
		"AttachNetworkInterface": s.attachNIC(t, id, &iri.NetworkInterface{Name: "second"}),
		"DetachNetworkInterface": s.detachNIC(t, id, "primary"),
	}
}

func absentDevices(t *testing.T, s *Suite) {
	for call, err := range s.calls(t, "00000000-0000-4000-8000-000000000000") {
		want(t, call+" of an unknown machine", err, codes.NotFound)
	}
	for call, err := range s.calls(t, "") {
		want(t, call+" of no machine", err, codes.InvalidArgument, "machine_id")
	}
	m := s.create(t, s.New(uid()))
	id := m.Metadata.Id
	want(t, "detach of an absent volume", s.detach(t, id, "absent"), codes.NotFound, "absent")
	want(t, "detach of an absent interface", s.detachNIC(t, id, "absent"), codes.NotFound, "absent")
	want(t, "detach without a name", s.detach(t, id, ""), codes.InvalidArgument, "name")
	want(t, "detach of an interface without a name", s.detachNIC(t, id, ""), codes.InvalidArgument, "name")
	if _, err := s.Client.DeleteMachine(t.Context(), &iri.DeleteMachineRequest{MachineId: id}); err != nil {
		t.Fatal(err)
	}
	for call, err := range s.calls(t, id) {
		if code := status.Code(err); code != codes.FailedPrecondition && code != codes.NotFound {
			t.Errorf("%s of a machine that is being deleted: %v", call, err)
		}
	}
}

func deviceLimits(t *testing.T, s *Suite) {
	m := s.New(uid())
	m.Spec.Power = iri.Power_POWER_OFF // nothing is made for it
	id := s.create(t, m).Metadata.Id
	number := regexp.MustCompile(`\d`)
	for kind, attach := range map[string]func(int) error{
		"volume": func(i int) error {
			return s.attach(t, id, &iri.Volume{Name: fmt.Sprintf("v%d", i), LocalDisk: &iri.LocalDisk{SizeBytes: 1 << 20}})
		},
		"network_interface": func(i int) error {
			return s.attachNIC(t, id, &iri.NetworkInterface{Name: fmt.Sprintf("n%d", i), NetworkId: m.Spec.NetworkInterfaces[0].NetworkId})
		},
	} {
		var err error
		for i := 0; i < 1000 && err == nil; i++ {
			err = attach(i)
		}
		want(t, "too many: "+kind, err, codes.ResourceExhausted, kind)
		if !number.MatchString(strings.ReplaceAll(err.Error(), id, "")) {
			t.Errorf("the limit is not named: %v", err)
		}
	}
}

func badDevices(t *testing.T, s *Suite) {
	m := s.create(t, s.New(uid()))
	id := m.Metadata.Id
	long := strings.Repeat("a", 300)
	for _, c := range []struct {
		name, field string
		volume      *iri.Volume
	}{
		{"no volume", "volume", nil},
		{"no name", "volume.name", &iri.Volume{LocalDisk: &iri.LocalDisk{}}},
		{"a name with slashes", "volume.name", &iri.Volume{Name: "../../etc", LocalDisk: &iri.LocalDisk{}}},
		{"a name of 300 characters", "volume.name", &iri.Volume{Name: long, LocalDisk: &iri.LocalDisk{}}},
		{"a device with slashes", "volume.device", &iri.Volume{Name: "v", Device: "../sda", LocalDisk: &iri.LocalDisk{}}},
		{"no kind", "volume", &iri.Volume{Name: "v"}},
		{"two kinds", "volume", &iri.Volume{Name: "v", LocalDisk: &iri.LocalDisk{}, Connection: &iri.VolumeConnection{Driver: "ceph"}}},
		{"an unknown driver", "volume.connection.driver", &iri.Volume{Name: "v", Connection: &iri.VolumeConnection{Driver: "no-such-driver"}}},
		{"a negative size", "volume.local_disk.size_bytes", &iri.Volume{Name: "v", LocalDisk: &iri.LocalDisk{SizeBytes: -1}}},
		{"an absurd size", "volume.local_disk.size_bytes", &iri.Volume{Name: "v", LocalDisk: &iri.LocalDisk{SizeBytes: 1 << 62}}},
		{"a malformed image", "volume.local_disk.image.image", &iri.Volume{Name: "v", LocalDisk: &iri.LocalDisk{Image: &iri.ImageSpec{Image: "http://host/x y"}}}},
	} {
		want(t, "attach: "+c.name, s.attach(t, id, c.volume), codes.InvalidArgument, c.field)
		want(t, "update: "+c.name, s.update(t, id, c.volume), codes.InvalidArgument, c.field)
	}
	for _, c := range []struct {
		name, field string
		nic         *iri.NetworkInterface
	}{
		{"no interface", "network_interface", nil},
		{"no name", "network_interface.name", &iri.NetworkInterface{}},
		{"a name with slashes", "network_interface.name", &iri.NetworkInterface{Name: "a/b"}},
		{"a name of 300 characters", "network_interface.name", &iri.NetworkInterface{Name: long}},
		{"no address", "network_interface.ips[1]", &iri.NetworkInterface{Name: "n", Ips: []string{"10.0.0.1", "10.0.0.256"}}},
		{"an empty attribute key", "network_interface.attributes", &iri.NetworkInterface{Name: "n", Attributes: map[string]string{"": "x"}}},
	} {
		want(t, "attach: "+c.name, s.attachNIC(t, id, c.nic), codes.InvalidArgument, c.field)
	}
	if got := s.spec(t, id, m.Spec.Volumes, m.Spec.NetworkInterfaces); got != cmp.Or(m.Metadata.Generation, got) {
		t.Errorf("what was refused raised the generation to %d", got)
	}
}
