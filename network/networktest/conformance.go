// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package networktest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// Two machines for the suite.
const (
	MachineA = "11111111-1111-4111-8111-111111111111"
	MachineB = "22222222-2222-4222-8222-222222222222"
)

// Setup is a plugin to try.
type Setup struct {
	// New makes a plugin, fresh from its constructor, on the host that the ones before were on.
	New func(t *testing.T) network.Plugin
	// Request is a definition that becomes ready on this host; the suite fills in machine, name, MAC and queues.
	Request network.Interface
	// Same can take the place of Request without the device being taken out; equal to Request if nil.
	Same *network.Interface
	// Other cannot; nil if nothing in a definition has an effect.
	Other *network.Interface
	// Bad are definitions that can never work.
	Bad map[string]Bad
	// Traceless says that nothing of an interface is on the host: the VMM holds all of it.
	Traceless bool
	// Occupy makes a device of somebody else where the interface's would be, and returns what proves that it was left
	// alone. Nil if the plugin has no devices.
	Occupy func(t *testing.T, ref network.Ref) (untouched func() error)
	// Eventful says that Events is not nil.
	Eventful bool
	// Patience is how long a change that needs no person may take; default 30 s.
	Patience time.Duration
	// Quick is how long a call may take at most; default 5 s, much more than it should.
	Quick time.Duration
}

// Bad is a machine that Validate has to refuse.
type Bad struct {
	NICs  []network.Interface
	Index int
	Field string
}

type suite struct {
	Setup
	machine string // of the present case, so that no case sees another's
}

// Conformance runs the suite.
func Conformance(t *testing.T, setup Setup) {
	if setup.Patience == 0 {
		setup.Patience = 30 * time.Second
	}
	if setup.Quick == 0 {
		setup.Quick = 5 * time.Second
	}
	for i, c := range []struct {
		name string
		run  func(*suite, *testing.T)
	}{
		{"the name is stable", (*suite).name},
		{"applying is idempotent and the handle stable", (*suite).idempotent},
		{"observing and listing change nothing", (*suite).observing},
		{"deleting is idempotent and takes only what is named", (*suite).deleting},
		{"what exists is listed and nothing else", (*suite).listing},
		{"a plugin started anew sees what there is", (*suite).restart},
		{"names that collide are kept apart", (*suite).collisions},
		{"different interfaces at the same time do not disturb each other", (*suite).concurrent},
		{"a definition that is as good keeps the device", (*suite).identity},
		{"a changed definition replaces the old one", (*suite).replaced},
		{"bad definitions are refused with their field", (*suite).refused},
		{"good definitions are accepted", (*suite).accepted},
		{"a cancelled context ends a call and changes nothing", (*suite).cancelled},
		{"a device of somebody else is left alone", (*suite).foreign},
		{"events end with their context and wait for nobody", (*suite).events},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &suite{Setup: setup, machine: fmt.Sprintf("00000000-0000-4000-8000-%012d", i)}
			c.run(s, t)
		})
	}
}

func (s *suite) request(machine, nic string) network.Request {
	r := network.Request{MachineID: machine, Interface: s.Request, MAC: mac(machine, nic), Hostname: "guest", Queues: 2}
	r.Interface.Name = nic
	return r
}

// mac is different for every interface of a suite's run.
func mac(machine, nic string) string {
	sum := 0
	for _, c := range machine + "/" + nic {
		sum = sum*31 + int(c)
	}
	return fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", sum>>24&255, sum>>16&255, sum>>8&255, sum&255)
}

func (s *suite) timed(t *testing.T, what string, call func(context.Context) (network.Result, error)) network.Result {
	t.Helper()
	began := time.Now()
	result, err := call(t.Context())
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if took := time.Since(began); took > s.Quick {
		t.Errorf("%s took %v", what, took)
	}
	switch result.State {
	case network.StateAbsent, network.StateReady:
	case network.StatePending, network.StateFailed, network.StateLeaving:
		if result.Reason == "" || result.Message == "" {
			t.Errorf("%s: %s says not why: %+v", what, result.State, result)
		}
	default:
		t.Errorf("%s: state %q", what, result.State)
	}
	return result
}

func (s *suite) apply(t *testing.T, p network.Plugin, r network.Request) network.Result {
	t.Helper()
	return s.timed(t, "Apply", func(ctx context.Context) (network.Result, error) { return p.Apply(ctx, r) })
}

// ready applies until the interface is ready, as a reconciler does, and removes it when the test ends.
func (s *suite) ready(t *testing.T, p network.Plugin, r network.Request) network.Result {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.Patience)
		defer cancel()
		for ctx.Err() == nil {
			if result, err := p.Delete(ctx, r.Ref()); err == nil && result.State == network.StateAbsent {
				return
			}
			pause(ctx)
		}
	})
	deadline := time.Now().Add(s.Patience)
	for {
		result := s.apply(t, p, r)
		if result.State == network.StateReady {
			if result.Handle == "" || result.MAC == "" || result.Backend == "" {
				t.Fatalf("ready without handle, MAC or back end: %+v", result)
			}
			if (result.Backend == network.BackendTap) != (result.Tap != "") || (result.Backend == network.BackendPCI) != (result.PCI != "") {
				t.Fatalf("the back end and what belongs to it disagree: %+v", result)
			}
			return result
		}
		if result.State != network.StatePending || time.Now().After(deadline) {
			t.Fatalf("%s is not ready: %+v", r.Ref(), result)
		}
		pause(t.Context())
	}
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond):
	}
}

func (s *suite) gone(t *testing.T, p network.Plugin, ref network.Ref) {
	t.Helper()
	deadline := time.Now().Add(s.Patience)
	for {
		result := s.timed(t, "Delete", func(ctx context.Context) (network.Result, error) { return p.Delete(ctx, ref) })
		if result.State == network.StateAbsent {
			return
		}
		if result.State != network.StateLeaving || time.Now().After(deadline) {
			t.Fatalf("%s does not go: %+v", ref, result)
		}
		pause(t.Context())
	}
}

func (s *suite) observe(t *testing.T, p network.Plugin, ref network.Ref) network.Result {
	t.Helper()
	return s.timed(t, "Observe", func(ctx context.Context) (network.Result, error) { return p.Observe(ctx, ref) })
}

// list returns what is listed of the present case's machines.
func (s *suite) list(t *testing.T, p network.Plugin) []string {
	t.Helper()
	refs, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range refs {
		if strings.HasPrefix(r.MachineID, s.machine) {
			out = append(out, r.String())
		}
	}
	slices.Sort(out)
	return out
}

func (s *suite) expectList(t *testing.T, p network.Plugin, want ...string) {
	t.Helper()
	if s.Traceless {
		want = nil
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, s.list(t, p)); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
}

func (s *suite) name(t *testing.T) {
	if name := s.New(t).Name(); name == "" || name != s.New(t).Name() || strings.ToLower(name) != name {
		t.Errorf("name %q", name)
	}
}

func (s *suite) idempotent(t *testing.T) {
	p, r := s.New(t), s.request(s.machine, "primary")
	first := s.ready(t, p, r)
	for range 3 {
		if diff := cmp.Diff(first, s.apply(t, p, r)); diff != "" {
			t.Errorf("applied again: %s", diff)
		}
	}
	s.expectList(t, p, r.Ref().String())
}

func (s *suite) observing(t *testing.T) {
	p, r := s.New(t), s.request(s.machine, "primary")
	if got := s.observe(t, p, r.Ref()); got.State != network.StateAbsent {
		t.Errorf("observed before it was made: %+v", got)
	}
	s.expectList(t, p)
	first := s.ready(t, p, r)
	for range 2 {
		got := s.observe(t, p, r.Ref())
		if s.Traceless {
			continue
		}
		if got.State != network.StateReady || got.Handle != first.Handle || got.Tap != first.Tap || got.PCI != first.PCI || got.Backend != first.Backend {
			t.Errorf("observed %+v, applied %+v", got, first)
		}
	}
	s.gone(t, p, r.Ref())
	if got := s.observe(t, p, r.Ref()); got.State != network.StateAbsent {
		t.Errorf("observed after it was removed: %+v", got)
	}
	s.expectList(t, p)
}

func (s *suite) deleting(t *testing.T) {
	p, one, two := s.New(t), s.request(s.machine, "one"), s.request(s.machine, "two")
	s.gone(t, p, one.Ref())
	s.ready(t, p, one)
	second := s.ready(t, p, two)
	for range 2 {
		s.gone(t, p, one.Ref())
	}
	s.expectList(t, p, two.Ref().String())
	if diff := cmp.Diff(second, s.apply(t, p, two)); diff != "" {
		t.Errorf("the other interface changed: %s", diff)
	}
	again := s.ready(t, p, one)
	if again.Tap == second.Tap && again.Tap != "" {
		t.Errorf("both have tap %s", again.Tap)
	}
}

func (s *suite) listing(t *testing.T) {
	p := s.New(t)
	var want []string
	for i := range 3 {
		r := s.request(s.machine, fmt.Sprintf("nic-%d", i))
		s.ready(t, p, r)
		want = append(want, r.Ref().String())
		s.expectList(t, p, want...)
	}
	s.gone(t, p, network.Ref{MachineID: s.machine, Name: "nic-1"})
	s.expectList(t, p, want[0], want[2])
}

func (s *suite) restart(t *testing.T) {
	r := s.request(s.machine, "primary")
	first := s.ready(t, s.New(t), r)
	p := s.New(t)
	s.expectList(t, p, r.Ref().String())
	if got := s.observe(t, p, r.Ref()); !s.Traceless && (got.State != network.StateReady || got.Handle != first.Handle) {
		t.Errorf("observed %+v, before %+v", got, first)
	}
	if diff := cmp.Diff(first, s.apply(t, s.New(t), r)); diff != "" {
		t.Errorf("applied by another: %s", diff)
	}
	s.gone(t, s.New(t), r.Ref())
	s.expectList(t, s.New(t))
}

// collisions uses names of which a careless concatenation makes the same.
func (s *suite) collisions(t *testing.T) {
	p := s.New(t)
	seen := map[string]network.Ref{}
	var want []string
	for _, ref := range []network.Ref{
		{MachineID: s.machine, Name: "a"},
		{MachineID: s.machine, Name: "a-b"},
		{MachineID: s.machine + "a", Name: "b"},
		{MachineID: s.machine + "-a", Name: "b"},
		{MachineID: s.machine, Name: strings.Repeat("a", 63)},
		{MachineID: s.machine, Name: strings.Repeat("a", 62) + "b"},
	} {
		got := s.ready(t, p, s.request(ref.MachineID, ref.Name))
		for _, key := range []string{"tap " + got.Tap, "handle " + got.Handle} {
			if before, twice := seen[key]; twice && !strings.HasSuffix(key, " ") {
				t.Errorf("%s and %s share %s", before, ref, key)
			}
			seen[key] = ref
		}
		want = append(want, ref.String())
	}
	s.expectList(t, p, want...)
}

func (s *suite) concurrent(t *testing.T) {
	p := s.New(t)
	const n = 8
	var wg sync.WaitGroup
	failures := make(chan error, n*4)
	for i := range n {
		wg.Go(func() {
			r := s.request(s.machine, fmt.Sprintf("nic-%d", i))
			for range 4 {
				if err := s.cycle(t, p, r); err != nil {
					failures <- fmt.Errorf("%s: %w", r.Ref(), err)
				}
			}
		})
	}
	wg.Wait()
	close(failures)
	for err := range failures {
		t.Error(err)
	}
	s.expectList(t, p)
}

// cycle makes, looks at and removes an interface, without ending the test from another goroutine.
func (s *suite) cycle(t *testing.T, p network.Plugin, r network.Request) error {
	ctx, cancel := context.WithTimeout(t.Context(), s.Patience)
	defer cancel()
	if err := until(ctx, network.StateReady, func() (network.Result, error) { return p.Apply(ctx, r) }); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	if _, err := p.List(ctx); err != nil {
		return fmt.Errorf("list: %w", err)
	}
	return until(ctx, network.StateAbsent, func() (network.Result, error) { return p.Delete(ctx, r.Ref()) })
}

func until(ctx context.Context, want network.State, call func() (network.Result, error)) error {
	for {
		result, err := call()
		if err != nil || result.State == want {
			return err
		}
		if ctx.Err() != nil || result.State == network.StateFailed {
			return fmt.Errorf("it is %+v", result)
		}
		pause(ctx)
	}
}
