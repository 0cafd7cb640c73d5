// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package networktest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
)

// Taps is an imaginary host. The zero value is empty and ready for use.
type Taps struct {
	mu      sync.Mutex
	devices map[string]tap.Device
	last    int
	// Fail, if set, is asked first by every call but List.
	Fail func(call, name string) error
}

var _ tap.Host = (*Taps)(nil)

// Put adds a device, or replaces it.
func (t *Taps) Put(d tap.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.devices == nil {
		t.devices = map[string]tap.Device{}
	}
	t.last++
	d.Index = t.last
	t.devices[d.Name] = d
}

// Get returns a device.
func (t *Taps) Get(name string) (tap.Device, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d, ok := t.devices[name]
	return d, ok
}

// Ensure implements tap.Host.
func (t *Taps) Ensure(_ context.Context, s tap.Spec) (tap.Device, error) {
	if t.Fail != nil {
		if err := t.Fail("Ensure", s.Name); err != nil {
			return tap.Device{}, err
		}
	}
	d, ok := t.Get(s.Name)
	if ok && d.Owner != "" && d.Owner != s.Owner {
		return d, fmt.Errorf("%w: %q", tap.ErrNotOwner, d.Owner)
	}
	if !ok || !d.InUse {
		d.MultiQueue = s.Queues > 1
	}
	d.Name, d.Owner, d.Up = s.Name, s.Owner, true
	if d.MTU = max(s.MTU, d.MTU); d.MTU == 0 {
		d.MTU = 1500
	}
	t.Put(d)
	d, _ = t.Get(s.Name)
	return d, nil
}

// List implements tap.Host.
func (t *Taps) List(context.Context) ([]tap.Device, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.devices)), nil
}

// Remove implements tap.Host.
func (t *Taps) Remove(_ context.Context, name, owner string) error {
	if t.Fail != nil {
		if err := t.Fail("Remove", name); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if d, ok := t.devices[name]; ok && d.Owner != "" && d.Owner != owner {
		return fmt.Errorf("%w: %q", tap.ErrNotOwner, d.Owner)
	}
	delete(t.devices, name)
	return nil
}
