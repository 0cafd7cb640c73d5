// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package ceph

import (
	"context"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume/storagedaemon"
)

// daemons have one that serves size bytes, or none if that is 0.
type daemons struct {
	size    int64
	err     error
	adopted storagedaemon.Export
	served  int
	resized int64
}

func (d *daemons) Adopt(_ context.Context, e storagedaemon.Export) (storagedaemon.Served, bool, error) {
	d.adopted = e
	return storagedaemon.Served{Socket: "socket", SizeBytes: d.size}, d.size > 0, d.err
}

func (d *daemons) Serve(context.Context, storagedaemon.Export) (storagedaemon.Served, error) {
	d.served++
	return storagedaemon.Served{Socket: "socket", SizeBytes: max(d.size, 1<<29)}, nil
}

func (d *daemons) Resize(_ context.Context, _ volume.Ref, size int64) error {
	d.resized = size
	return nil
}
func (d *daemons) Stop(context.Context, volume.Ref, string) error { return nil }
func (d *daemons) Held(context.Context) ([]volume.Ref, error)     { return nil, nil }

func TestAnImageThatIsServedIsTakenUpWithoutItsCluster(t *testing.T) {
	d := &daemons{size: 1 << 30}
	away := machine.Errorf(machine.Unavailable, "no monitor answers")
	cluster := away
	p, err := New(Options{Daemons: d, Inspect: func(context.Context, Image) (int64, error) { return 1 << 30, cluster }})
	if err != nil {
		t.Fatal(err)
	}
	prepare := func(bytes int64) (volume.Prepared, error) {
		v := good()
		v.Connection.EffectiveStorageBytes = bytes
		return p.Prepare(t.Context(), volume.Request{MachineID: "m", Volume: v, Dir: t.TempDir(), Made: true})
	}
	got, err := prepare(1 << 30)
	if err != nil || got.VhostUser != "socket" || got.SizeBytes != 1<<30 || got.Handle != "h" || d.served > 0 {
		t.Errorf("taken up: %+v, %v, served %d times", got, err, d.served)
	}
	if e := d.adopted; e.Identity != p.Identity(good()) || len(e.Secrets) == 0 || e.Node["driver"] != "rbd" {
		t.Errorf("with %+v it could not be started again", e)
	}
	// What has to be made larger has to be asked for: the image may have become larger elsewhere.
	if _, err := prepare(2 << 30); !machine.IsKind(err, machine.Unavailable) || d.resized > 0 {
		t.Errorf("a larger one: %v, made %d bytes", err, d.resized)
	}
	cluster = nil
	if got, err := prepare(2 << 30); err != nil || got.SizeBytes != 2<<30 || d.resized != 2<<30 {
		t.Errorf("a larger one: %+v, %v, made %d bytes", got, err, d.resized)
	}
	// One that is not served yet is opened first.
	cluster, d.size = away, 0
	if _, err := prepare(1 << 30); !machine.IsKind(err, machine.Unavailable) {
		t.Errorf("without a daemon: %v", err)
	}
	d.err = machine.Errorf(machine.FailedPrecondition, "it serves another")
	if _, err := prepare(1 << 30); !machine.IsKind(err, machine.FailedPrecondition) {
		t.Errorf("with a daemon of another: %v", err)
	}
}
