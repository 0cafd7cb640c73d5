// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/event"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/health"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
)

// Bounds of the page.
const (
	maxWaiting = 100
	maxEvents  = 50
	maxText    = 500 // bytes of an error
)

// Driver is a hypervisor of this server.
type Driver struct {
	Name        string   `json:"name"`
	Version     string   `json:"version"`
	Binary      string   `json:"binary"`
	Firmware    string   `json:"firmware,omitempty"`
	Accelerator string   `json:"accelerator,omitempty"`
	Chosen      bool     `json:"chosen"` // for new machines
	Reasons     []string `json:"reasons,omitempty"`
	Warnings    []string `json:"warnings,omitempty"`
}

// Store is what is asked of the store.
type Store interface {
	List() []*machine.Machine
	Usage(without ...string) store.Usage
	Quarantined() []store.Quarantined
}

// Events is what is asked of the event recorder.
type Events interface {
	List(f event.Filter) []event.Event
}

// Health is what is asked of the health registry.
type Health interface {
	Report(ctx context.Context, purpose health.Purpose, without ...string) health.Report
}

// Options is what a page is made of.
type Options struct {
	Version    string
	Node       string
	Started    time.Time
	Drivers    []Driver
	Supervisor string // "systemd" or "child"
	Store      Store
	Classes    *class.Set
	Host       class.Host
	Reserve    class.Reserve
	Events     Events
	Health     Health
	Queue      func() int       // machines that wait for a look
	Now        func() time.Time // default time.Now
}

// Server answers /statusz.
type Server struct{ o Options }

// New makes a Server.
func New(o Options) (*Server, error) {
	if o.Store == nil || o.Classes == nil || o.Events == nil || o.Health == nil || o.Queue == nil {
		return nil, errors.New("status: an option is missing")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Server{o: o}, nil
}

// Page is all that is told.
type Page struct {
	Version     string         `json:"version"`
	Node        string         `json:"node"`
	Now         time.Time      `json:"now"`
	Started     time.Time      `json:"started"`
	Supervisor  string         `json:"supervisor"`
	Drivers     []Driver       `json:"drivers"`
	Live        health.Report  `json:"live"`
	Ready       health.Report  `json:"ready"`
	Capacity    Capacity       `json:"capacity"`
	Classes     []Class        `json:"classes"`
	Machines    map[string]int `json:"machinesByState"`
	Queue       int            `json:"queueLength"`
	Waiting     []Waiting      `json:"notAsWanted"`
	More        int            `json:"notAsWantedOmitted,omitempty"` // beyond the first 100
	Quarantined []Damaged      `json:"quarantined,omitempty"`
	Events      []Event        `json:"events"` // the newest first
}

// Capacity is what machines may have together and have. Memory is in bytes.
type Capacity struct {
	CPUs         int64 `json:"cpus"`
	CPUsUsed     int64 `json:"cpusUsed"`
	Memory       int64 `json:"memoryBytes"`
	MemoryUsed   int64 `json:"memoryBytesUsed"` // with what is counted for each VMM
	Machines     int64 `json:"machines"`        // 0 is no bound
	MachinesUsed int64 `json:"machinesUsed"`
}

// Class is a machine class.
type Class struct {
	Name     string `json:"name"`
	CPUs     int64  `json:"cpus"`
	Memory   int64  `json:"memoryBytes"`
	Quantity int64  `json:"quantity"` // that fit on the empty server
	Machines int    `json:"machines"` // that there are
}

// Waiting is a machine that is not as wanted.
type Waiting struct {
	Machine string    `json:"machine"`
	Name    string    `json:"name,omitempty"` // namespace/name in the cluster
	State   string    `json:"state"`
	Step    string    `json:"step"` // or the reason for which it waits
	Since   time.Time `json:"since"`
	Error   string    `json:"error,omitempty"`
}

// Damaged is a stored machine that was set aside.
type Damaged struct {
	Machine string    `json:"machine"`
	Reason  string    `json:"reason"`
	At      time.Time `json:"at"`
}

// Event is a machine event.
type Event struct {
	Time    time.Time `json:"time"`
	Machine string    `json:"machine"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
}

// Page asks everybody.
func (s *Server) Page(ctx context.Context) Page {
	all := s.o.Store.List()
	p := Page{
		Version: s.o.Version, Node: s.o.Node, Now: s.o.Now(), Started: s.o.Started, Supervisor: s.o.Supervisor,
		Drivers: s.o.Drivers, Live: s.o.Health.Report(ctx, health.Live), Ready: s.o.Health.Report(ctx, health.Ready),
		Capacity: s.capacity(), Classes: s.classes(all), Machines: states(all), Queue: s.o.Queue(), Events: s.events(),
	}
	p.Waiting = waiting(all)
	if n := len(p.Waiting); n > maxWaiting {
		p.Waiting, p.More = p.Waiting[:maxWaiting], n-maxWaiting
	}
	for _, q := range s.o.Store.Quarantined() {
		p.Quarantined = append(p.Quarantined, Damaged{Machine: q.Key, Reason: short(q.Reason), At: q.At})
	}
	return p
}

func (s *Server) capacity() Capacity {
	free, used := class.Free(s.o.Host, s.o.Reserve), s.o.Store.Usage()
	return Capacity{
		CPUs: free.CPUs, CPUsUsed: used.CPUs, Memory: free.MemoryBytes,
		MemoryUsed: used.MemoryBytes + used.Machines*s.o.Reserve.MemoryPerMachine,
		Machines:   free.Machines, MachinesUsed: used.Machines,
	}
}

func (s *Server) classes(all []*machine.Machine) []Class {
	count := map[string]int{}
	for _, m := range all {
		count[m.Desired.Class]++
	}
	var classes []Class
	for _, k := range s.o.Classes.List() {
		classes = append(classes, Class{
			Name: k.Name, CPUs: k.CPU(), Memory: k.MemoryBytes(), Machines: count[k.Name],
			Quantity: class.Quantity(k, s.o.Host, s.o.Reserve),
		})
	}
	return classes
}

func states(all []*machine.Machine) map[string]int {
	count := map[string]int{}
	for _, m := range all {
		count[string(shown(m))]++
	}
	return count
}

func shown(m *machine.Machine) machine.State { return cmp.Or(m.Record.State, machine.Pending) }

// waiting are the machines that are not as wanted, the longest first.
func waiting(all []*machine.Machine) []Waiting {
	var found []Waiting
	for _, m := range all {
		w := Waiting{Machine: m.ID, Name: clusterName(m), State: string(shown(m))}
		ready := m.Record.Condition(reconcile.ConditionReady)
		switch failing := ready != nil && ready.Status != machine.ConditionTrue; {
		case failing:
			w.Step, w.Since, w.Error = ready.Reason, ready.LastTransition, short(ready.Message)
		case m.Desired.Deleting():
			w.Step, w.Since = "deletion", *m.Desired.DeletedAt
		case ready == nil:
			w.Step, w.Since = "not looked at yet", m.Desired.CreatedAt
		default:
			continue
		}
		found = append(found, w)
	}
	slices.SortStableFunc(found, func(a, b Waiting) int { return a.Since.Compare(b.Since) })
	return found
}

// clusterName is what the cluster calls a machine, if the machinepoollet said so.
func clusterName(m *machine.Machine) string {
	const prefix = "machinepoollet.ironcore.dev/machine-"
	namespace, name := m.Desired.Labels[prefix+"namespace"], m.Desired.Labels[prefix+"name"]
	if namespace == "" || name == "" {
		return ""
	}
	return short(namespace + "/" + name)
}

func (s *Server) events() []Event {
	all := s.o.Events.List(event.Filter{})
	var newest []Event
	for _, e := range slices.Backward(all[max(0, len(all)-maxEvents):]) {
		newest = append(newest, Event{
			Time: e.Time, Machine: e.Involved.ID, Type: string(e.Type), Reason: e.Reason, Message: short(e.Message),
		})
	}
	return newest
}

func short(s string) string {
	if len(s) <= maxText {
		return s
	}
	cut := maxText
	for cut > 0 && s[cut]&0xc0 == 0x80 { // in the middle of a character
		cut--
	}
	return s[:cut] + "…"
}
