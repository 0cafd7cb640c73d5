// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

// owned are volumes whose media others resize; it counts how often remote ones are prepared.
type owned struct {
	volumes
	fixed    bool
	prepared *atomic.Int32
}

func (p owned) Prepare(ctx context.Context, req volume.Request) (volume.Prepared, error) {
	out, err := p.volumes.Prepare(ctx, req)
	if req.Volume.Connection != nil {
		p.prepared.Add(1)
		out.Fixed = p.fixed
	}
	return out, err
}

func sized(name, handle string, bytes int64) machine.Volume {
	v := far(name, handle)
	v.Connection.EffectiveStorageBytes = bytes
	return v
}

func TestARemoteVolumeIsPreparedInEachLifeOfTheDaemonAndWhenWhatServesItChanges(t *testing.T) {
	var prepared atomic.Int32
	h, d := running(t, func(h *host, d *daemon) {
		d.tweak = func(o *Options) { o.Volumes = []volume.Plugin{owned{volumes: volumes{h}, prepared: &prepared}} }
	})
	d.want(one, add(sized("data", "h", 1<<20)))
	d.attached(one)
	for range 2 {
		before := prepared.Load()
		d.stop()
		d.start(nil)
		d.until("prepared again", one, func(*machine.Machine) bool { return prepared.Load() > before })
		before = prepared.Load()
		d.r.VolumeChanged(volume.Ref{MachineID: one, Name: "data"})
		d.r.VolumeChanged(volume.Ref{MachineID: one, Name: "another"})
		d.r.VolumeChanged(volume.Ref{MachineID: "another", Name: "data"})
		d.until("prepared again", one, func(*machine.Machine) bool { return prepared.Load() > before })
		d.attached(one)
	}
	// What cannot be served again is told, and tried again.
	h.fail("volume data", machine.Errorf(machine.Unavailable, "its server is away"))
	d.r.VolumeChanged(volume.Ref{MachineID: one, Name: "data"})
	d.until("says so", one, func(m *machine.Machine) bool { return condition(m, ConditionVolumes).Status == machine.ConditionFalse })
	h.fail("volume data", nil)
	d.attached(one)
	if h.starts != 1 {
		t.Errorf("%d starts", h.starts)
	}
	d.finish()
}

func TestAMediumThatOthersResizeIsOpenedAnewAndNeverResized(t *testing.T) {
	var prepared atomic.Int32
	h, d := running(t, func(h *host, d *daemon) {
		h.fixed = true
		d.tweak = func(o *Options) {
			o.ResizeByReplug = true
			o.Volumes = []volume.Plugin{owned{volumes: volumes{h}, fixed: true, prepared: &prepared}}
		}
	})
	d.want(one, add(sized("data", "h", 1<<20)))
	d.attached(one)
	d.want(one, change(sized("data", "h", 8<<20)))
	d.until("says that it is too small", one, func(m *machine.Machine) bool { return condition(m, ConditionVolumes).Reason == "VolumeTooSmall" })
	if n := h.read(func() int { return h.asked["detach"] }); n > 0 {
		t.Errorf("taken out %d times for nothing", n)
	}
	h.mu.Lock()
	h.sizes["/far/h"] = 16 << 20
	h.mu.Unlock()
	d.r.VolumeChanged(volume.Ref{MachineID: one, Name: "data"})
	m := d.attached(one)
	if rec := m.Record.Volumes["data"]; rec.GuestBytes != 16<<20 || rec.SizeBytes != 16<<20 {
		t.Errorf("record %+v", rec)
	}
	if n := h.read(func() int { return h.asked["resize"] }); n > 0 {
		t.Errorf("resized %d times", n)
	}
	d.finish()
}
