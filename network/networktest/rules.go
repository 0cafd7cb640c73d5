// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package networktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

func (s *suite) identity(t *testing.T) {
	p, again := s.New(t), s.New(t)
	if p.Identity(s.Request) != again.Identity(s.Request) {
		t.Error("the identity is another one after a restart")
	}
	same := s.Request
	if s.Same != nil {
		same = *s.Same
	}
	if p.Identity(s.Request) != p.Identity(same) {
		t.Error("the identity of an equivalent definition differs")
	}
	if s.Other != nil && p.Identity(s.Request) == p.Identity(*s.Other) {
		t.Error("the identity of another definition is the same")
	}
	r := s.request(s.machine, "primary")
	first := s.ready(t, p, r)
	r.Interface = same
	r.Interface.Name = "primary"
	if diff := cmp.Diff(first, s.ready(t, p, r)); diff != "" {
		t.Errorf("an equivalent definition changed the interface: %s", diff)
	}
}

// replaced is what a client does that detaches and attaches under the same name.
func (s *suite) replaced(t *testing.T) {
	if s.Other == nil {
		return
	}
	p, r := s.New(t), s.request(s.machine, "primary")
	first := s.ready(t, p, r)
	r.Interface = *s.Other
	r.Interface.Name = "primary"
	second := s.ready(t, p, r)
	if second.Handle != first.Handle {
		t.Logf("the handle went from %s to %s", first.Handle, second.Handle)
	}
	s.expectList(t, p, r.Ref().String())
	s.gone(t, p, r.Ref())
	s.expectList(t, p)
}

func (s *suite) refused(t *testing.T) {
	p := s.New(t)
	for name, bad := range s.Bad {
		t.Run(name, func(t *testing.T) {
			var field *network.FieldError
			err := p.Validate(s.machine, bad.NICs)
			if !errors.As(err, &field) || field.Index != bad.Index || field.Field != bad.Field || field.Message == "" {
				t.Errorf("Validate = %v, want one about network_interfaces[%d].%s", err, bad.Index, bad.Field)
			}
		})
	}
}

func (s *suite) accepted(t *testing.T) {
	p := s.New(t)
	for name, nics := range map[string][]network.Interface{
		"none": nil, "one": {s.request(s.machine, "one").Interface},
	} {
		for _, id := range []string{"", s.machine} { // a machine may have no id yet
			if err := p.Validate(id, nics); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func (s *suite) cancelled(t *testing.T) {
	p, r := s.New(t), s.request(s.machine, "primary")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Apply(ctx, r); !s.Traceless && !errors.Is(err, context.Canceled) {
		t.Errorf("Apply = %v", err)
	}
	s.expectList(t, p)
	first := s.ready(t, p, r)
	if _, err := p.Delete(ctx, r.Ref()); !s.Traceless && !errors.Is(err, context.Canceled) {
		t.Errorf("Delete = %v", err)
	}
	if diff := cmp.Diff(first, s.apply(t, p, r)); diff != "" {
		t.Errorf("a cancelled Delete changed: %s", diff)
	}
	for call, err := range map[string]error{
		"Observe": second(p.Observe(ctx, r.Ref())), "List": second(p.List(ctx)),
	} {
		if !s.Traceless && !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v", call, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func (s *suite) foreign(t *testing.T) {
	if s.Occupy == nil {
		return
	}
	p, r := s.New(t), s.request(s.machine, "primary")
	untouched := s.Occupy(t, r.Ref())
	if got := s.apply(t, p, r); got.State != network.StateFailed {
		t.Errorf("Apply = %+v", got)
	}
	s.expectForeign(t, "Apply", untouched)
	s.gone(t, p, r.Ref())
	s.expectForeign(t, "Delete", untouched)
	s.expectList(t, p)
	if got := s.observe(t, p, r.Ref()); got.State == network.StateReady {
		t.Errorf("Observe = %+v", got)
	}
}

func (s *suite) expectForeign(t *testing.T, call string, untouched func() error) {
	t.Helper()
	if err := untouched(); err != nil {
		t.Errorf("%s touched the device: %v", call, err)
	}
}

func (s *suite) events(t *testing.T) {
	p := s.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	unread, read := p.Events(ctx), p.Events(ctx)
	if (unread != nil) != s.Eventful || (read != nil) != s.Eventful {
		t.Fatalf("Events = %v, eventful: %v", read, s.Eventful)
	}
	var wg sync.WaitGroup
	if read != nil {
		wg.Go(func() {
			for range read { // until it is closed
			}
		})
	}
	// Nobody reads the first channel, and that must hold up nothing.
	for i := range 20 {
		r := s.request(s.machine, fmt.Sprintf("nic-%d", i))
		s.ready(t, p, r)
		s.gone(t, p, r.Ref())
	}
	cancel()
	wg.Wait()
	deadline := time.After(s.Patience)
	for unread != nil {
		select {
		case _, open := <-unread:
			if !open {
				return
			}
		case <-deadline:
			t.Fatal("the channel is not closed")
		}
	}
}
