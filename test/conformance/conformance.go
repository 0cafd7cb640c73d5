// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package conformance checks that a MachineRuntime keeps the contract with the machinepoollet, C1 to C19, through
// nothing but its gRPC socket. It exists so that the server alone, the whole daemon, and any other runtime pass the
// same cases. It must never look behind the socket, and it deletes what it created.
package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	metaapi "github.com/ironcore-dev/ironcore/iri/apis/meta/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// Labels and annotations that the poollet sends.
const (
	prefix   = "machinepoollet.ironcore.dev/"
	labelUID = prefix + "machine-uid"
)

// patience is how long a machine may take for anything; a guest under emulation on a busy host is slow.
const patience = 5 * time.Minute

// Suite is a runtime under test.
type Suite struct {
	Client iri.MachineRuntimeClient
	Class  string // of a machine that fits at least twice
	Image  string // reference of a boot image
	// Works is true when machines are really started; without it the cases that wait for a state are left out.
	Works bool
	// HotPlug is true when, where machines work, the devices of a running guest really come and go, and the guest of
	// Image lets go of them.
	HotPlug bool
	// Capabilities are those of the class as they were configured; nil = not known here.
	Capabilities map[string]int64
}

// Run runs all cases.
func Run(t *testing.T, s Suite) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, *Suite)
	}{
		{"C1 the answer to create has metadata, spec and a status", c1},
		{"C2 volumes and interfaces are echoed field by field", c2},
		{"C4 lists are stable and an unchanged machine does not change", c4},
		{"C5 status is keyed by the names of the spec", c5},
		{"C6 the generation rises with the spec and not with annotations", c6},
		{"C7 an unknown machine is NotFound", c7},
		{"C8 states are those that the poollet knows", c8},
		{"C9 create is idempotent on the machine-uid label", c9},
		{"C10 delete is idempotent and the machine stays listed until it is gone", c10},
		{"C3 C15 a volume comes and goes, in the spec at once, and can come back", attachVolume},
		{"C3 C5 a network interface comes and goes, and keeps its handle", attachNIC},
		{"C11 detach and attach of the same name within a moment end in the new content", replace},
		{"C12 a volume is updated in its place, and never shrinks", updateVolume},
		{"C7 devices that are not there are NotFound", absentDevices},
		{"more devices than are possible are ResourceExhausted and the limit is named", deviceLimits},
		{"bad devices are refused, name the field and leave no trace", badDevices},
		{"C13 C14 status lists each class with exactly its capabilities", c13},
		{"C16 events carry labels, action and no format verbs", c16},
		{"C17 creation time is in nanoseconds", c17},
		{"C18 ignition never leaves the runtime", c18},
		{"C19 a running machine has everything attached", c19},
		{"Exec answers with a URL of its own for each call, for running machines alone", execURL},
		{"an empty label value matches nothing that lacks the label", emptyLabel},
		{"filters by id and label narrow the list", filters},
		{"bad input is InvalidArgument, names the field and leaves no trace", badInput},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, &s) })
	}
}

// New makes a request as the poollet does.
func (s *Suite) New(uid string) *iri.Machine {
	return &iri.Machine{
		Metadata: &metaapi.ObjectMetadata{
			Labels: map[string]string{
				labelUID: uid, prefix + "machine-namespace": "default", prefix + "machine-name": "m-" + uid,
				"downward-api." + prefix + "root-machine-name": "m-" + uid,
			},
			Annotations: map[string]string{
				prefix + "machine-generation": "0", prefix + "irimachine-generation": "0",
				prefix + "networkinterfacemapping": `{"primary":{"name":"nic","uid":"u"}}`,
			},
		},
		Spec: &iri.MachineSpec{
			Class: s.Class, IgnitionData: []byte(`{"ignition":{"version":"3.4.0"}}`),
			Volumes: []*iri.Volume{{
				Name: "root", Device: "oda",
				LocalDisk: &iri.LocalDisk{SizeBytes: 64 << 20, Image: &iri.ImageSpec{Image: s.Image}},
			}, {Name: "scratch", Device: "odb", LocalDisk: &iri.LocalDisk{SizeBytes: 16 << 20}}},
			NetworkInterfaces: []*iri.NetworkInterface{{
				Name: "primary", NetworkId: "ironcore-net://default/net/1/uid", Ips: []string{"10.0.0.9", "10.0.0.1", "fd00::1"},
				Attributes: map[string]string{"rawNICLabels": `{"a":"b"}`, "rawNetworkLabels": "{}"},
			}},
			GuestConfig: &iri.GuestConfig{Hostname: "guest-1"},
		},
	}
}

func uid() string { return fmt.Sprintf("uid-%016x", rand.Uint64()) }

// create makes a machine that the end of the test deletes.
func (s *Suite) create(t *testing.T, m *iri.Machine) *iri.Machine {
	t.Helper()
	answer, err := s.Client.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: m})
	if err != nil {
		t.Fatal(err)
	}
	id := answer.GetMachine().GetMetadata().GetId()
	t.Cleanup(func() { s.delete(t, id) })
	return answer.Machine
}

// delete removes a machine and, where machines work, waits until it is gone.
func (s *Suite) delete(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := s.Client.DeleteMachine(ctx, &iri.DeleteMachineRequest{MachineId: id}); err != nil && status.Code(err) != codes.NotFound && status.Code(err) != codes.Unavailable {
		t.Errorf("delete: %v", err)
	}
	if !s.Works {
		return
	}
	for len(s.list(t, &iri.MachineFilter{Id: id})) > 0 {
		if ctx.Err() != nil {
			t.Fatalf("machine %s is not gone after %s", id, patience)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *Suite) list(t *testing.T, f *iri.MachineFilter) []*iri.Machine {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	answer, err := s.Client.ListMachines(ctx, &iri.ListMachinesRequest{Filter: f})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Machines
}

func (s *Suite) one(t *testing.T, id string) *iri.Machine {
	t.Helper()
	list := s.list(t, &iri.MachineFilter{Id: id})
	if len(list) != 1 {
		t.Fatalf("%d machines with id %s", len(list), id)
	}
	return list[0]
}

// until waits for a state, if machines work here.
func (s *Suite) until(t *testing.T, id string, want iri.MachineState) *iri.Machine {
	t.Helper()
	deadline := time.Now().Add(patience)
	handles := map[string]string{}
	for {
		m := s.one(t, id)
		for _, n := range m.Status.NetworkInterfaces { // C5: an empty one is cleared in the poollet's object
			if before := handles[n.Name]; before != "" && n.Handle == "" {
				t.Errorf("the handle of interface %s was %q and is empty while the machine is %s", n.Name, before, m.Status.State)
			}
			handles[n.Name] = n.Handle
		}
		if m.Status.State == want && m.Status.ObservedGeneration >= m.Metadata.Generation {
			return m
		}
		if time.Now().After(deadline) {
			t.Fatalf("machine never came to %s; it is %v", want, m.Status)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func c1(t *testing.T, s *Suite) {
	m := s.New(uid())
	got := s.create(t, m)
	if got.Status == nil || got.Spec == nil || got.Metadata.GetId() == "" {
		t.Fatalf("incomplete: %v", got)
	}
	if diff := cmp.Diff(m.Metadata.Labels, got.Metadata.Labels); diff != "" {
		t.Errorf("labels: %s", diff)
	}
	if diff := cmp.Diff(m.Metadata.Annotations, got.Metadata.Annotations); diff != "" {
		t.Errorf("annotations: %s", diff)
	}
	if got.Spec.GuestConfig.GetHostname() != "guest-1" || got.Spec.Class != s.Class {
		t.Errorf("spec: %v", got.Spec)
	}
}

func c2(t *testing.T, s *Suite) {
	m := s.New(uid())
	created := s.create(t, m)
	for where, got := range map[string]*iri.Machine{"create": created, "list": s.one(t, created.Metadata.Id)} {
		if diff := cmp.Diff(m.Spec.Volumes, got.Spec.Volumes, protocmp.Transform()); diff != "" {
			t.Errorf("%s, volumes: %s", where, diff)
		}
		if diff := cmp.Diff(m.Spec.NetworkInterfaces, got.Spec.NetworkInterfaces, protocmp.Transform()); diff != "" {
			t.Errorf("%s, interfaces: %s", where, diff)
		}
	}
}

func c4(t *testing.T, s *Suite) {
	first, second := s.create(t, s.New(uid())), s.create(t, s.New(uid()))
	if s.Works {
		s.until(t, first.Metadata.Id, iri.MachineState_MACHINE_RUNNING)
		s.until(t, second.Metadata.Id, iri.MachineState_MACHINE_RUNNING)
	}
	before := s.list(t, nil)
	for range 5 {
		if diff := cmp.Diff(before, s.list(t, nil), protocmp.Transform()); diff != "" {
			t.Fatalf("the list changed by itself: %s", diff)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func c5(t *testing.T, s *Suite) {
	m := s.create(t, s.New(uid()))
	got := s.one(t, m.Metadata.Id)
	var names []string
	for _, v := range got.Status.Volumes {
		names = append(names, v.Name)
	}
	for _, n := range got.Status.NetworkInterfaces {
		names = append(names, n.Name)
	}
	if diff := cmp.Diff([]string{"root", "scratch", "primary"}, names); diff != "" {
		t.Errorf("status names: %s", diff)
	}
}

func c6(t *testing.T, s *Suite) {
	m := s.create(t, s.New(uid()))
	id, generation := m.Metadata.Id, m.Metadata.Generation
	annotations := map[string]string{"a": "b"}
	if _, err := s.Client.UpdateMachineAnnotations(t.Context(), &iri.UpdateMachineAnnotationsRequest{MachineId: id, Annotations: annotations}); err != nil {
		t.Fatal(err)
	}
	got := s.one(t, id)
	if diff := cmp.Diff(annotations, got.Metadata.Annotations); diff != "" {
		t.Errorf("annotations are replaced as a whole: %s", diff)
	}
	if got.Metadata.Generation != generation {
		t.Errorf("annotations raised the generation from %d to %d", generation, got.Metadata.Generation)
	}
	off := &iri.UpdateMachinePowerRequest{MachineId: id, Power: iri.Power_POWER_OFF}
	for range 2 { // the second one changes nothing
		if _, err := s.Client.UpdateMachinePower(t.Context(), off); err != nil {
			t.Fatal(err)
		}
	}
	if got = s.one(t, id); got.Metadata.Generation != generation+1 || got.Spec.Power != iri.Power_POWER_OFF {
		t.Errorf("power off: generation %d after %d, power %s", got.Metadata.Generation, generation, got.Spec.Power)
	}
	if s.Works {
		s.until(t, id, iri.MachineState_MACHINE_SUSPENDED)
	}
}

func c7(t *testing.T, s *Suite) {
	const id = "00000000-0000-4000-8000-000000000000"
	ctx := t.Context()
	_, deleted := s.Client.DeleteMachine(ctx, &iri.DeleteMachineRequest{MachineId: id})
	_, annotated := s.Client.UpdateMachineAnnotations(ctx, &iri.UpdateMachineAnnotationsRequest{MachineId: id})
	_, powered := s.Client.UpdateMachinePower(ctx, &iri.UpdateMachinePowerRequest{MachineId: id})
	for call, err := range map[string]error{"delete": deleted, "annotations": annotated, "power": powered} {
		if status.Code(err) != codes.NotFound {
			t.Errorf("%s: %v", call, err)
		}
	}
	if n := len(s.list(t, &iri.MachineFilter{Id: id})); n != 0 {
		t.Errorf("%d machines", n)
	}
}

func c8(t *testing.T, s *Suite) {
	m := s.create(t, s.New(uid()))
	if m.Status.State != iri.MachineState_MACHINE_PENDING {
		t.Errorf("a new machine is %s", m.Status.State)
	}
	if !s.Works {
		return
	}
	s.until(t, m.Metadata.Id, iri.MachineState_MACHINE_RUNNING)
	for _, c := range []struct {
		power iri.Power
		want  iri.MachineState
	}{{iri.Power_POWER_OFF, iri.MachineState_MACHINE_SUSPENDED}, {iri.Power_POWER_ON, iri.MachineState_MACHINE_RUNNING}} {
		if _, err := s.Client.UpdateMachinePower(t.Context(), &iri.UpdateMachinePowerRequest{MachineId: m.Metadata.Id, Power: c.power}); err != nil {
			t.Fatal(err)
		}
		s.until(t, m.Metadata.Id, c.want)
	}
}

func c9(t *testing.T, s *Suite) {
	m := s.New(uid())
	first := s.create(t, m)
	second, err := s.Client.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: m})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := first.Metadata.Id, second.Machine.Metadata.Id; a != b {
		t.Errorf("two machines: %s and %s", a, b)
	}
	if n := len(s.list(t, &iri.MachineFilter{LabelSelector: map[string]string{labelUID: m.Metadata.Labels[labelUID]}})); n != 1 {
		t.Errorf("%d machines carry the label", n)
	}
}

func c10(t *testing.T, s *Suite) {
	m := s.create(t, s.New(uid()))
	id := m.Metadata.Id
	for i := range 50 {
		_, err := s.Client.DeleteMachine(t.Context(), &iri.DeleteMachineRequest{MachineId: id})
		if status.Code(err) == codes.NotFound {
			break
		}
		// Repeats may be told to come back later; the first call must be OK.
		if code := status.Code(err); code != codes.OK && (i == 0 || code != codes.Unavailable) {
			t.Fatal(err)
		}
		for _, m := range s.list(t, &iri.MachineFilter{Id: id}) {
			if m.Status.State != iri.MachineState_MACHINE_TERMINATING || m.Metadata.DeletedAt == 0 {
				t.Fatalf("listed as %s, deleted at %d", m.Status.State, m.Metadata.DeletedAt)
			}
		}
	}
	s.delete(t, id)
}

func execURL(t *testing.T, s *Suite) {
	ctx := t.Context()
	_, err := s.Client.Exec(ctx, &iri.ExecRequest{MachineId: "00000000-0000-4000-8000-000000000000"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("an unknown machine: %v", err)
	}
	m := s.New(uid())
	m.Spec.Power = iri.Power_POWER_OFF
	off := s.create(t, m)
	if _, err := s.Client.Exec(ctx, &iri.ExecRequest{MachineId: off.Metadata.Id}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a machine that is off: %v", err)
	}
	if !s.Works {
		return
	}
	on := s.create(t, s.New(uid()))
	s.until(t, on.Metadata.Id, iri.MachineState_MACHINE_RUNNING)
	seen := map[string]bool{}
	for range 2000 { // more than a bounded store of tokens would hold
		answer, err := s.Client.Exec(ctx, &iri.ExecRequest{MachineId: on.Metadata.Id})
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(answer.Url)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || len(path.Base(u.Path)) < 22 || seen[answer.Url] {
			t.Fatalf("answer %q, %v", answer.Url, err) // 22 characters of base64 are 128 bits
		}
		seen[answer.Url] = true
	}
}

func c13(t *testing.T, s *Suite) {
	answer, err := s.Client.Status(t.Context(), &iri.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range answer.MachineClassStatus {
		if c.MachineClass.Name == s.Class {
			r := c.MachineClass.Capabilities.Resources
			if r["cpu"] < 1 || r["memory"] < 1 || c.Quantity < 2 {
				t.Errorf("class: %v", c)
			}
			if diff := cmp.Diff(s.Capabilities, r); s.Capabilities != nil && diff != "" {
				t.Errorf("the poollet matches by exactly equal capabilities (-want +got):\n%s", diff)
			}
			return
		}
	}
	t.Errorf("class %s is not listed", s.Class)
}

func c16(t *testing.T, s *Suite) {
	if !s.Works {
		t.Log("no machine is started here; events are covered where machines work")
		return
	}
	m := s.create(t, s.New(uid()))
	s.until(t, m.Metadata.Id, iri.MachineState_MACHINE_RUNNING)
	answer, err := s.Client.ListEvents(t.Context(), &iri.ListEventsRequest{Filter: &iri.EventFilter{Id: m.Metadata.Id}})
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.Events) == 0 {
		t.Fatal("no event tells of the start")
	}
	for _, e := range answer.Events {
		meta := e.Spec.InvolvedObjectMeta
		if meta.GetLabels()[labelUID] != m.Metadata.Labels[labelUID] || e.Spec.Action == "" || e.Spec.Reason == "" ||
			strings.Contains(e.Spec.Message, "%") || (e.Spec.Type != "Normal" && e.Spec.Type != "Warning") {
			t.Errorf("event: %v", e)
		}
	}
	now := time.Now().Unix()
	window := &iri.EventFilter{EventsFromTime: now - 3600, EventsToTime: now - 1800}
	if answer, err = s.Client.ListEvents(t.Context(), &iri.ListEventsRequest{Filter: window}); err != nil || len(answer.Events) != 0 {
		t.Errorf("events of another time: %v %v", answer, err)
	}
}

func c17(t *testing.T, s *Suite) {
	m := s.create(t, s.New(uid()))
	created := time.Unix(0, m.Metadata.CreatedAt)
	if d := time.Since(created); d < -time.Minute || d > time.Hour {
		t.Errorf("created at %s", created)
	}
}

func c18(t *testing.T, s *Suite) {
	m := s.create(t, s.New(uid()))
	for where, got := range map[string]*iri.Machine{"create": m, "list": s.one(t, m.Metadata.Id)} {
		if n := len(got.Spec.IgnitionData); n != 0 {
			t.Errorf("%s: %d bytes of ignition", where, n)
		}
	}
}

func c19(t *testing.T, s *Suite) {
	if !s.Works {
		t.Log("no machine is started here")
		return
	}
	m := s.create(t, s.New(uid()))
	got := s.until(t, m.Metadata.Id, iri.MachineState_MACHINE_RUNNING)
	for _, v := range got.Status.Volumes {
		if v.State != iri.VolumeState_VOLUME_ATTACHED || v.Handle == "" {
			t.Errorf("volume: %v", v)
		}
	}
	for _, n := range got.Status.NetworkInterfaces {
		if n.State != iri.NetworkInterfaceState_NETWORK_INTERFACE_ATTACHED || n.Handle == "" {
			t.Errorf("interface: %v", n)
		}
	}
	if got.Status.ImageRef != s.Image {
		t.Errorf("image: %q", got.Status.ImageRef)
	}
}

func emptyLabel(t *testing.T, s *Suite) {
	s.create(t, s.New(uid()))
	if n := len(s.list(t, &iri.MachineFilter{LabelSelector: map[string]string{labelUID: ""}})); n != 0 {
		t.Errorf("%d machines", n)
	}
}

func filters(t *testing.T, s *Suite) {
	a, b := s.create(t, s.New(uid())), s.create(t, s.New(uid()))
	got := s.list(t, &iri.MachineFilter{LabelSelector: map[string]string{
		prefix + "machine-namespace": "default", labelUID: b.Metadata.Labels[labelUID],
	}})
	if len(got) != 1 || got[0].Metadata.Id != b.Metadata.Id {
		t.Errorf("by label: %v", got)
	}
	if got := s.list(t, &iri.MachineFilter{Id: a.Metadata.Id, LabelSelector: map[string]string{"no": "such"}}); len(got) != 0 {
		t.Errorf("by id and another's label: %v", got)
	}
}

// clone copies a request so that a case may spoil it.
func clone(m *iri.Machine) *iri.Machine { return proto.CloneOf(m) }
