// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"strings"
)

// audit looks once, at start, for VMMs of this state root whose machine the store does not have: one that was set
// aside as damaged, or whose state was put back to an older copy. They are told and never touched: what they run
// may be all that is left of a machine.
func (r *Reconciler) audit(ctx context.Context) {
	prefix := r.o.Store.ID() + "/"
	found, err := r.o.Supervisor.FindAll(ctx, prefix)
	if err != nil {
		r.o.Logger.Warn("VMMs without a machine were not looked for", "error", err)
		return
	}
	for _, id := range found {
		name, nonce, _ := strings.Cut(strings.TrimPrefix(id.Marker, prefix), "/")
		if strings.Contains(nonce, "/") {
			continue // what serves a volume and not a VMM; the sweep sees to those
		}
		if _, err := r.o.Store.Get(name); err != nil {
			r.o.Logger.Error("a VMM runs whose machine is not in the store; it is left alone, see docs/operations.md",
				"machine", name, "pid", id.PID, "unit", id.Unit)
		}
	}
}
