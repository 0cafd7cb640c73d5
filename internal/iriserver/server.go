// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/event"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// RuntimeName is the first half of a machine's provider id ("<runtime>://<id>"). It must never change.
const RuntimeName = "cloud-hypervisor-provider"

// Store is what the server needs of the store.
type Store interface {
	Get(id string) (*machine.Machine, error)
	List() []*machine.Machine
	ByUID(uid string) *machine.Machine
	Usage(without ...string) store.Usage
	Create(ctx context.Context, m *machine.Machine) (*machine.Machine, error)
	UpdateDesired(ctx context.Context, id string, version uint64, fn func(*machine.Desired) error) (*machine.Machine, error)
}

// Events is what the server needs of the event recorder.
type Events interface {
	List(f event.Filter) []event.Event
}

// Exec is what the server needs of the console server.
type Exec interface {
	// URL returns a URL under which the machine's console can be opened once.
	URL(machineID string) (string, error)
}

// Options is what a Server is made of.
type Options struct {
	Store        Store
	Events       Events
	Classes      *class.Set
	Host         class.Host    // what the host has in total
	Reserve      class.Reserve // what of it machines may not have
	Volumes      []volume.Plugin
	Network      network.Plugin
	Capabilities vmm.Capabilities
	Ignition     string                 // "auto" or a transport of the hypervisor
	CheckImage   func(ref string) error // syntax of an image reference
	Exec         Exec                   // nil: calls of Exec are refused
	Version      string                 // semantic version of this build
	NewID        func() string          // default: UUID version 7
	Now          func() time.Time       // default: time.Now
	Logger       *slog.Logger
}

// Server implements the MachineRuntime service.
type Server struct {
	iri.UnimplementedMachineRuntimeServer
	o      Options
	status *iri.StatusResponse // fixed: quantities are of the empty host
	cache  answerCache

	admission sync.Mutex
	admitting map[string]machine.Resources // admitted, not yet in the store
}

var _ iri.MachineRuntimeServer = (*Server)(nil)

// New makes a Server. The store must be loaded.
func New(o Options) (*Server, error) {
	switch {
	case o.Store == nil, o.Events == nil, o.Classes == nil, o.Network == nil, o.CheckImage == nil:
		return nil, errors.New("iriserver: Store, Events, Classes, Network and CheckImage are needed")
	case o.Version == "":
		return nil, errors.New("iriserver: Version is needed")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.NewID == nil {
		o.NewID = newID
	}
	if o.Ignition == "" {
		o.Ignition = "auto"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, admitting: map[string]machine.Resources{}}
	s.status = s.makeStatus()
	return s, nil
}

// Version names the runtime. The poollet asks once, at its start.
func (s *Server) Version(context.Context, *iri.VersionRequest) (*iri.VersionResponse, error) {
	return &iri.VersionResponse{RuntimeName: RuntimeName, RuntimeVersion: s.o.Version}, nil
}

// Status says how many machines of each class fit on the empty host.
func (s *Server) Status(context.Context, *iri.StatusRequest) (*iri.StatusResponse, error) {
	return s.status, nil
}

func (s *Server) makeStatus() *iri.StatusResponse {
	answer := &iri.StatusResponse{}
	for _, c := range s.o.Classes.List() {
		answer.MachineClassStatus = append(answer.MachineClassStatus, &iri.MachineClassStatus{
			MachineClass: &iri.MachineClass{
				Name: c.Name, Capabilities: &iri.MachineClassCapabilities{Resources: c.Resources},
			},
			Quantity: class.Quantity(c, s.o.Host, s.o.Reserve),
		})
	}
	return answer
}

// ListMachines answers from memory, in an order that never changes by itself, and never in part. Ignition payloads
// are left out: nobody compares them, and a few of them would exceed the 4 MiB that a client takes.
func (s *Server) ListMachines(_ context.Context, req *iri.ListMachinesRequest) (*iri.ListMachinesResponse, error) {
	f := req.GetFilter()
	answer := &iri.ListMachinesResponse{}
	for _, m := range s.candidates(f) {
		if matches(m.Desired.Labels, f.GetLabelSelector()) {
			answer.Machines = append(answer.Machines, s.cache.get(m))
		}
	}
	if f.GetId() == "" && len(f.GetLabelSelector()) == 0 { // all of them
		s.cache.sweep(len(answer.Machines), func(id string) bool { _, err := s.o.Store.Get(id); return err != nil })
	}
	return answer, nil
}

// candidates narrows the machines by what is indexed.
func (s *Server) candidates(f *iri.MachineFilter) []*machine.Machine {
	if id := f.GetId(); id != "" {
		m, err := s.o.Store.Get(id)
		if err != nil {
			return nil
		}
		return []*machine.Machine{m}
	}
	if uid := f.GetLabelSelector()[labelUID]; uid != "" {
		if m := s.o.Store.ByUID(uid); m != nil {
			return []*machine.Machine{m}
		}
		return nil
	}
	return s.o.Store.List()
}

// labelUID is the label by which the poollet finds its machines; the store keeps it unique.
const labelUID = "machinepoollet.ironcore.dev/machine-uid"

// matches reports whether labels has every entry of the selector; an empty value matches an empty value alone.
func matches(labels, selector map[string]string) bool {
	for k, want := range selector {
		if got, ok := labels[k]; !ok || got != want {
			return false
		}
	}
	return true
}

// CreateMachine admits and stores a machine. Asked again with the machine-uid label of a machine that exists, it
// answers with that one: a client whose first answer was lost must not get a second machine.
func (s *Server) CreateMachine(ctx context.Context, req *iri.CreateMachineRequest) (*iri.CreateMachineResponse, error) {
	d, err := s.desired(req.GetMachine())
	if err != nil {
		return nil, err
	}
	m := &machine.Machine{ID: s.o.NewID(), Desired: *d, Record: machine.Record{State: machine.Pending}}
	if existing := s.o.Store.ByUID(d.Labels[labelUID]); existing != nil && d.Labels[labelUID] != "" {
		return s.created(existing)
	}
	if err := s.admit(m.ID, d.Resources); err != nil {
		return nil, err
	}
	defer s.admitted(m.ID)
	stored, err := s.o.Store.Create(ctx, m)
	if existing := duplicateOf(err); existing != nil {
		return s.created(existing)
	}
	if err != nil {
		return nil, err
	}
	s.o.Logger.Info("machine created", "machine", stored.ID, "class", d.Class)
	return s.created(stored)
}

func (s *Server) created(m *machine.Machine) (*iri.CreateMachineResponse, error) {
	if m.Desired.Deleting() {
		return nil, machine.Errorf(machine.FailedPrecondition, "machine %s with this %s label is still being deleted", m.ID, labelUID)
	}
	return &iri.CreateMachineResponse{Machine: s.cache.get(m)}, nil
}

// DeleteMachine records the intent and answers; the machine stays listed as terminating until all of it is gone.
//
// Repeated calls cost neither a write nor a lock that a write needs, and are answered Unavailable with the state of the
// deletion. The poollet asks again after a nanosecond as long as the answer is OK, 1,500 times a second for the
// minutes that a guest may take; told Unavailable it backs off, and its next list shows it the end within 5 s. Of the
// two cures that were measured against it, the other one, to hold the call for a second, holds its only worker.
func (s *Server) DeleteMachine(ctx context.Context, req *iri.DeleteMachineRequest) (*iri.DeleteMachineResponse, error) {
	m, err := s.find(req.GetMachineId())
	if err != nil {
		return nil, err
	}
	if m.Desired.Deleting() {
		return nil, stillDeleting(m)
	}
	_, err = s.o.Store.UpdateDesired(ctx, m.ID, 0, func(d *machine.Desired) error {
		if !d.Deleting() {
			now := s.o.Now()
			d.DeletedAt = &now // the generation stays: it is of the spec, and a client waits until it is observed
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.o.Logger.Info("machine deletion asked for", "machine", m.ID)
	return &iri.DeleteMachineResponse{}, nil
}

// stillDeleting says how far a deletion is.
func stillDeleting(m *machine.Machine) error {
	for _, c := range m.Record.Conditions {
		if c.Status == machine.ConditionFalse && c.Message != "" {
			return machine.Errorf(machine.Unavailable, "machine %s is being deleted: %s: %s", m.ID, c.Reason, c.Message)
		}
	}
	return machine.Errorf(machine.Unavailable, "machine %s is being deleted", m.ID)
}

// UpdateMachineAnnotations replaces the annotations. The generation stays: the poollet writes annotations whenever
// it rises, so a rise here would never end.
func (s *Server) UpdateMachineAnnotations(
	ctx context.Context, req *iri.UpdateMachineAnnotationsRequest,
) (*iri.UpdateMachineAnnotationsResponse, error) {
	m, err := s.find(req.GetMachineId())
	if err != nil {
		return nil, err
	}
	if err := checkMap("annotations", req.GetAnnotations()); err != nil {
		return nil, err
	}
	_, err = s.o.Store.UpdateDesired(ctx, m.ID, 0, func(d *machine.Desired) error {
		d.Annotations = copyMap(req.GetAnnotations())
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &iri.UpdateMachineAnnotationsResponse{}, nil
}

// UpdateMachinePower turns a machine on or off. Off takes effect after the answer, in order; the state then reads
// suspended. On starts a machine again whose guest turned itself off and was left so.
func (s *Server) UpdateMachinePower(
	ctx context.Context, req *iri.UpdateMachinePowerRequest,
) (*iri.UpdateMachinePowerResponse, error) {
	m, err := s.find(req.GetMachineId())
	if err != nil {
		return nil, err
	}
	power, err := powerOf("power", req.GetPower())
	if err != nil {
		return nil, err
	}
	stored, err := s.o.Store.UpdateDesired(ctx, m.ID, 0, func(d *machine.Desired) error {
		if d.Deleting() {
			return machine.Errorf(machine.FailedPrecondition, "machine %s is being deleted", m.ID)
		}
		if d.Power != power || (power == machine.PowerOn && m.IsKeptOff()) {
			d.Repower(power)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if stored.Desired.Generation != m.Desired.Generation {
		s.o.Logger.Info("machine power asked for", "machine", m.ID, "power", power)
	}
	return &iri.UpdateMachinePowerResponse{}, nil
}

// find returns the machine a request names.
func (s *Server) find(id string) (*machine.Machine, error) {
	if id == "" {
		return nil, machine.InvalidField("machine_id", "must not be empty")
	}
	return s.o.Store.Get(id)
}

// ListEvents returns the events of a time window [from, to) in Unix seconds; with a bound missing, all that are kept.
func (s *Server) ListEvents(_ context.Context, req *iri.ListEventsRequest) (*iri.ListEventsResponse, error) {
	f := req.GetFilter()
	answer := &iri.ListEventsResponse{}
	for _, e := range s.o.Events.List(event.Filter{
		ID: f.GetId(), Labels: f.GetLabelSelector(), From: f.GetEventsFromTime(), To: f.GetEventsToTime(),
	}) {
		answer.Events = append(answer.Events, eventAnswer(e))
	}
	return answer, nil
}
