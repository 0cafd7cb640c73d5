// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

// Deadlines of calls to a VMM. Boot and attach may take 60 s when a back end hangs
// (Cloud Hypervisor retries a vhost-user socket for that long).
const (
	connectTimeout = 20 * time.Second
	inspectTimeout = 10 * time.Second
	controlTimeout = 30 * time.Second
	bootTimeout    = 120 * time.Second
	attachTimeout  = 90 * time.Second
)

// session is the hold on one living VMM. One goroutine per session waits for its end and its events.
type session struct {
	proc   process.Process
	driver vmm.Driver
	ref    vmm.Ref

	mu      sync.Mutex
	vm      vmm.VM    // nil until connected
	resumed time.Time // when its paused guest was last let go on
	short   int       // connections in a row that did not last
	closed  chan struct{}
	once    sync.Once
}

func (s *session) connected() vmm.VM {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vm
}

func (s *session) lastResumed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resumed
}

func (s *session) close() {
	s.once.Do(func() { close(s.closed) })
	if vm := s.connected(); vm != nil {
		_ = vm.Close()
	}
}

func (s *session) ended() bool {
	select {
	case <-s.proc.Done():
		return true
	default:
		return false
	}
}

func (r *Reconciler) session(id string) *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[id]
}

// hold begins a session with a living process.
func (r *Reconciler) hold(id string, driver vmm.Driver, proc process.Process) *session {
	s := &session{proc: proc, driver: driver, ref: r.o.ref(id), closed: make(chan struct{})}
	r.mu.Lock()
	old := r.sessions[id]
	r.sessions[id] = s
	r.mu.Unlock()
	if old != nil {
		old.close()
	}
	r.unblock(id)
	go r.follow(id, s)
	return s
}

// follow wakes the machine when its process ends.
func (r *Reconciler) follow(id string, s *session) {
	select {
	case <-s.proc.Done():
		r.queue.Add(id)
	case <-s.closed:
	}
}

// connect opens the control connection of a session, if it has none that works.
func (r *Reconciler) connect(ctx context.Context, id string, s *session) (vmm.VM, error) {
	if vm := s.connected(); vm != nil {
		return vm, nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	go func() { // no use to wait for the socket of a dead process
		select {
		case <-s.proc.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	vm, err := s.driver.Connect(ctx, s.ref)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.vm = vm
	s.mu.Unlock()
	go r.pump(id, s, vm)
	if err := r.o.Consoles.Open(id, vm.Console(), r.o.consoleLog(id)); err != nil {
		r.o.Logger.Warn("console not recorded", "machine", id, "error", err)
	}
	return vm, nil
}

// lasting is how long a connection must have lasted for its end not to be one of a row.
const lasting = 10 * time.Second

// pump turns the VMM's events into looks at the machine. When the connection ends the next look makes a new one; not at
// once if connections end again and again.
func (r *Reconciler) pump(id string, s *session, vm vmm.VM) {
	began := r.o.Now()
	for ev := range vm.Events() {
		r.guestEvent(id, ev)
		r.queue.Add(id)
	}
	s.mu.Lock()
	if s.vm == vm {
		s.vm = nil
	}
	if r.o.Now().Sub(began) >= lasting {
		s.short = 0
	}
	wait := time.Duration(0)
	if s.short > 0 {
		wait = capped(100*time.Millisecond, s.short-1, r.o.MaxBackoff)
	}
	s.short++
	s.mu.Unlock()
	_ = vm.Close()
	select {
	case <-s.closed:
	default:
		r.queue.AddAfter(id, wait)
	}
}

func (r *Reconciler) guestEvent(id string, ev vmm.Event) {
	m, err := r.o.Store.Get(id)
	if err != nil {
		return
	}
	switch ev.Kind {
	case vmm.EventDeviceRemoved, vmm.EventGuestReset, vmm.EventResync:
		r.unblock(id)
	}
	switch ev.Kind {
	case vmm.EventGuestReset:
		r.o.Events.Event(m, Normal, "GuestRebooted", "RebootGuest", "the guest rebooted")
	case vmm.EventProblem:
		r.o.Events.Event(m, Warning, "GuestPaused", "WatchGuest", paused(ev.Reason))
	case vmm.EventGuestPanicked:
		r.o.Events.Event(m, Warning, "GuestPanicked", "WatchGuest", "the guest's kernel panicked")
	}
}

func (r *Reconciler) dropSession(id string) {
	r.mu.Lock()
	s := r.sessions[id]
	delete(r.sessions, id)
	delete(r.unrecorded, id)
	r.mu.Unlock()
	if s != nil {
		s.close()
	}
	r.o.Consoles.Close(id)
}

func (r *Reconciler) closeSessions() {
	r.mu.Lock()
	ids := sortedKeys(r.sessions)
	r.mu.Unlock()
	for _, id := range ids {
		r.dropSession(id)
	}
}

// observe asks the host what there is of m. An error means "could not ask": nothing must be concluded from it.
func (r *Reconciler) observe(ctx context.Context, m *machine.Machine) (View, error) {
	m, err := r.complete(ctx, m)
	if err != nil {
		return View{}, err
	}
	v, err := r.observeVMM(ctx, m)
	if err == nil {
		r.viewDevices(&v)
	}
	return v, err
}

func (r *Reconciler) observeVMM(ctx context.Context, m *machine.Machine) (View, error) {
	v := View{Machine: m, Process: ProcessNone, Driver: r.o.Driver.Name(), Grace: r.o.grace(m), Button: r.o.ButtonInterval, Agent: r.o.GuestShutdown != nil, Now: r.o.Now()}
	if m.Record.VMM == nil {
		return v, nil
	}
	s := r.session(m.ID)
	if s == nil {
		var err error
		if s, v.Process, err = r.adopt(ctx, m); err != nil || s == nil {
			return v, err
		}
		if m, err = r.o.Store.Get(m.ID); err != nil { // adopting may have recorded the identity
			return v, err
		}
		v.Machine = m
	}
	if m.Record.VMM.Process == nil { // held, but its identity could not be recorded when it was started
		if m, err := r.recordProcess(ctx, m, s.proc.Identity()); err == nil {
			v.Machine = m
		} else if !machine.IsKind(err, machine.Exhausted) { // a full disk: its mark still finds it
			return v, err
		}
	}
	v.Process = ProcessAlive
	if s.ended() {
		v.Process = ProcessGone
		return v, nil
	}
	if m.Record.VMM.StopAskedAt != nil { // whatever it answers, it is to end; one that hangs would hold a worker
		return v, nil
	}
	obs, err := r.inspect(ctx, m.ID, s)
	switch {
	case err == nil:
		v.VM, v.Resumed = obs, s.lastResumed()
		_, v.Plugger = s.connected().(vmm.Plugger)
		return v, nil
	case s.ended():
		v.Process = ProcessGone
		return v, nil
	case stopping(m):
		// It is to end anyway and its process is proven: an answer is not needed, it will be killed in due time.
		r.o.Logger.Warn("VMM does not answer while stopping", "machine", m.ID, "error", err)
		return v, nil
	}
	return v, err
}

// stopping reports whether the VMM of m is not wanted any more.
func stopping(m *machine.Machine) bool {
	asked := m.Record.VMM != nil && m.Record.VMM.StopAskedAt != nil
	return m.Desired.Deleting() || m.Desired.Power == machine.PowerOff || m.IsKeptOff() || asked
}

func (r *Reconciler) inspect(ctx context.Context, id string, s *session) (vmm.Observation, error) {
	if s == nil || s.ended() {
		return vmm.Observation{}, machine.Errorf(machine.Unavailable, "the VMM process has ended")
	}
	vm, err := r.connect(ctx, id, s)
	if err != nil {
		return vmm.Observation{}, fmt.Errorf("connect to VMM: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	obs, err := vm.Inspect(ctx)
	if err != nil {
		return obs, fmt.Errorf("inspect VMM: %w", err)
	}
	if obs.MachineID != "" && obs.MachineID != id {
		return obs, fmt.Errorf("inspect VMM: %w", vmm.ErrIdentity)
	}
	if held := s.proc.Identity().PID; obs.PID != 0 && obs.PID != held {
		return obs, fmt.Errorf("inspect VMM: process %d answers and not %d: %w", obs.PID, held, vmm.ErrIdentity)
	}
	return obs, nil
}

// adopt finds the recorded process again after a restart of the daemon. A nil session without error means that the
// returned state holds. The driver is needed last: that a process is gone can be proven without it.
func (r *Reconciler) adopt(ctx context.Context, m *machine.Machine) (*session, ProcessState, error) {
	rec := m.Record.VMM
	id := rec.Process
	if id == nil {
		// Of any launch: one that was given up may have got through after all, and would be the second VMM soon.
		found, err := r.o.Supervisor.FindAll(ctx, r.markerPrefix(m.ID))
		if err != nil {
			return nil, "", fmt.Errorf("find VMM process: %w", err)
		}
		if len(found) == 0 {
			return nil, ProcessIntended, nil
		}
		first := eldest(preferred(found, rec.Marker))
		if _, err := r.recordProcess(ctx, m, first); err != nil && !machine.IsKind(err, machine.Exhausted) {
			return nil, "", err
		}
		own := machine.ProcessIdentity(first)
		id = &own
	}
	proc, err := r.o.Supervisor.Adopt(ctx, process.Identity(*id))
	if errors.Is(err, process.ErrGone) {
		return nil, ProcessGone, nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("adopt VMM process: %w", err)
	}
	driver, ok := r.o.Drivers[rec.Driver]
	if !ok {
		return nil, "", machine.Errorf(machine.Unavailable,
			"the VMM was started by driver %q, which is not available now", rec.Driver)
	}
	r.o.Logger.Info("VMM adopted", "machine", m.ID, "pid", id.PID)
	return r.hold(m.ID, driver, proc), ProcessAlive, nil
}

// recordProcess notes which process the machine's VMM is, and returns the machine as it is then.
func (r *Reconciler) recordProcess(ctx context.Context, m *machine.Machine, proc process.Identity) (*machine.Machine, error) {
	id := machine.ProcessIdentity(proc)
	return r.o.Store.UpdateRecord(ctx, m.ID, func(rec *machine.Record) error {
		if rec.VMM != nil {
			rec.VMM.Process, rec.VMM.Marker = &id, id.Marker
		}
		return nil
	})
}

// preferred narrows processes of a machine to those of one launch, if there are any.
func preferred(found []process.Identity, marker string) []process.Identity {
	var own []process.Identity
	for _, id := range found {
		if id.Marker == marker {
			own = append(own, id)
		}
	}
	if len(own) > 0 {
		return own
	}
	return found
}

// eldest picks the VMM itself among processes of one marker: helpers it forked are younger.
func eldest(found []process.Identity) process.Identity {
	first := found[0]
	for _, id := range found[1:] {
		if id.StartTicks < first.StartTicks || (id.StartTicks == first.StartTicks && id.PID < first.PID) {
			first = id
		}
	}
	return first
}
