// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"fmt"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// Connected returns the machines to whose living VMM there is a connection now, sorted.
func (r *Reconciler) Connected() []string {
	r.mu.Lock()
	ids := sortedKeys(r.sessions)
	r.mu.Unlock()
	n := 0
	for _, id := range ids {
		if r.connection(id) != nil {
			ids[n] = id
			n++
		}
	}
	return ids[:n]
}

// connection returns the connection that is there; it opens none.
func (r *Reconciler) connection(id string) vmm.VM {
	s := r.session(id)
	if s == nil || s.ended() {
		return nil
	}
	return s.connected()
}

// Ask has the VMM of a machine answer a question, over the connection that is there. It changes nothing; a health
// check uses it.
func (r *Reconciler) Ask(ctx context.Context, id string) error {
	vm := r.connection(id)
	if vm == nil {
		return machine.Errorf(machine.Unavailable, "there is no connection to the VMM")
	}
	_, err := vm.Inspect(ctx)
	return err
}

// Counters asks the VMM of a machine what its devices have done, over the connection that is there, and the kernel about
// network interfaces that the VMM does not count. It fails with
// machine.Unimplemented where the driver counts nothing.
func (r *Reconciler) Counters(ctx context.Context, id string) ([]vmm.DeviceCounters, error) {
	vm := r.connection(id)
	if vm == nil {
		return nil, machine.Errorf(machine.Unavailable, "there is no connection to the VMM")
	}
	counting, ok := vm.(vmm.Counting)
	if !ok {
		return nil, machine.Errorf(machine.Unimplemented, "the driver counts nothing")
	}
	counters, err := counting.Counters(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for counters: %w", err)
	}
	return r.withTraffic(id, counters), nil
}
