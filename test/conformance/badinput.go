// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strings"
	"testing"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// spoilt is one way to get a request wrong.
type spoilt struct {
	name  string
	field string // that the answer must name
	spoil func(*iri.Machine)
}

func volume(i int, fn func(*iri.Volume)) func(*iri.Machine) {
	return func(m *iri.Machine) { fn(m.Spec.Volumes[i]) }
}

func nic(fn func(*iri.NetworkInterface)) func(*iri.Machine) {
	return func(m *iri.Machine) { fn(m.Spec.NetworkInterfaces[0]) }
}

var spoiltRequests = []spoilt{
	{"no metadata", "machine.metadata", func(m *iri.Machine) { m.Metadata = nil }},
	{"no spec", "machine.spec", func(m *iri.Machine) { m.Spec = nil }},
	{"an id of the client's", "machine.metadata.id", func(m *iri.Machine) { m.Metadata.Id = "mine" }},
	{"unknown class", "machine.spec.class", func(m *iri.Machine) { m.Spec.Class = "no-such-class" }},
	{"no class", "machine.spec.class", func(m *iri.Machine) { m.Spec.Class = "" }},
	{"unknown power", "machine.spec.power", func(m *iri.Machine) { m.Spec.Power = 7 }},
	{"empty image reference", "volumes[0].local_disk.image.image", volume(0, func(v *iri.Volume) { v.LocalDisk.Image.Image = "" })},
	{"malformed image reference", "volumes[0].local_disk.image.image", volume(0, func(v *iri.Volume) { v.LocalDisk.Image.Image = "http://host/x y" })},
	{"image digest too short", "volumes[0].local_disk.image.image", volume(0, func(v *iri.Volume) { v.LocalDisk.Image.Image = "host/x@sha256:abc" })},
	{"negative size", "volumes[0].local_disk.size_bytes", volume(0, func(v *iri.Volume) { v.LocalDisk.SizeBytes = -1 })},
	{"absurd size", "volumes[1].local_disk.size_bytes", volume(1, func(v *iri.Volume) { v.LocalDisk.SizeBytes = 1 << 62 })},
	{"duplicate volume name", "volumes[1].name", volume(1, func(v *iri.Volume) { v.Name = "root" })},
	{"duplicate device", "volumes[1].device", volume(1, func(v *iri.Volume) { v.Device = "oda" })},
	{"volume name with a slash", "volumes[0].name", volume(0, func(v *iri.Volume) { v.Name = "../../etc" })},
	{"volume name with dots alone", "volumes[0].name", volume(0, func(v *iri.Volume) { v.Name = ".." })},
	{"empty volume name", "volumes[0].name", volume(0, func(v *iri.Volume) { v.Name = "" })},
	{"volume name of 300 characters", "volumes[0].name", volume(0, func(v *iri.Volume) { v.Name = strings.Repeat("a", 300) })},
	{"device with a slash", "volumes[0].device", volume(0, func(v *iri.Volume) { v.Device = "../sda" })},
	{"volume of no kind", "volumes[1]", volume(1, func(v *iri.Volume) { v.LocalDisk = nil })},
	{"volume of two kinds", "volumes[1]", volume(1, func(v *iri.Volume) { v.Connection = &iri.VolumeConnection{Driver: "ceph"} })},
	{"unknown volume driver", "volumes[1].connection.driver", volume(1, func(v *iri.Volume) {
		v.LocalDisk, v.Connection = nil, &iri.VolumeConnection{Driver: "no-such-driver", Handle: "h"}
	})},
	{"absurd number of volumes", "spec.volumes", func(m *iri.Machine) {
		for i := range 5000 {
			m.Spec.Volumes = append(m.Spec.Volumes, &iri.Volume{Name: fmt.Sprintf("v%d", i), LocalDisk: &iri.LocalDisk{}})
		}
	}},
	{"absurd number of interfaces", "spec.network_interfaces", func(m *iri.Machine) {
		for i := range 5000 {
			m.Spec.NetworkInterfaces = append(m.Spec.NetworkInterfaces, &iri.NetworkInterface{Name: fmt.Sprintf("n%d", i)})
		}
	}},
	{"duplicate interface name", "network_interfaces[1].name", func(m *iri.Machine) {
		m.Spec.NetworkInterfaces = append(m.Spec.NetworkInterfaces, &iri.NetworkInterface{Name: "primary"})
	}},
	{"interface name with a slash", "network_interfaces[0].name", nic(func(n *iri.NetworkInterface) { n.Name = "a/b" })},
	{"no IP address", "network_interfaces[0].ips[1]", nic(func(n *iri.NetworkInterface) { n.Ips[1] = "10.0.0.256" })},
	{"an empty label key", "machine.metadata.labels", func(m *iri.Machine) { m.Metadata.Labels[""] = "x" }},
	{"labels of a mebibyte", "machine.metadata.labels", func(m *iri.Machine) { m.Metadata.Labels["x"] = strings.Repeat("x", 1<<20) }},
	{"host name with a space", "guest_config.hostname", func(m *iri.Machine) { m.Spec.GuestConfig.Hostname = "a b" }},
	{"ignition of 20 MiB", "machine.spec.ignition_data", func(m *iri.Machine) { m.Spec.IgnitionData = make([]byte, 20<<20) }},
}

func badInput(t *testing.T, s *Suite) {
	ctx := t.Context()
	before := len(s.list(t, nil))
	for _, c := range spoiltRequests {
		m := clone(s.New(uid()))
		c.spoil(m)
		_, err := s.Client.CreateMachine(ctx, &iri.CreateMachineRequest{Machine: m})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: want InvalidArgument naming %s, got %v", c.name, c.field, err)
		}
	}
	_, create := s.Client.CreateMachine(ctx, &iri.CreateMachineRequest{})
	_, deleted := s.Client.DeleteMachine(ctx, &iri.DeleteMachineRequest{})
	_, annotated := s.Client.UpdateMachineAnnotations(ctx, &iri.UpdateMachineAnnotationsRequest{})
	_, powered := s.Client.UpdateMachinePower(ctx, &iri.UpdateMachinePowerRequest{})
	for call, c := range map[string]struct {
		err   error
		field string
	}{"create": {create, "machine"}, "delete": {deleted, "machine_id"}, "annotations": {annotated, "machine_id"}, "power": {powered, "machine_id"}} {
		if status.Code(c.err) != codes.InvalidArgument || !strings.Contains(c.err.Error(), c.field) {
			t.Errorf("empty %s request: %v", call, c.err)
		}
	}
	if after := len(s.list(t, nil)); after != before {
		t.Errorf("%d machines before, %d after", before, after)
	}
}
