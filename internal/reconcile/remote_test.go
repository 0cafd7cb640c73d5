// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
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

func TestWhatServesAVolumeThatWaitsForTheNextStartIsTakenUpAsItIs(t *testing.T) {
	var seen atomic.Pointer[volume.Request]
	h, d := running(t, func(h *host, d *daemon) {
		d.tweak = func(o *Options) { o.Volumes = []volume.Plugin{versioned{volumes{h}, &seen}} }
	})
	d.want(one, add(far("far", "x")))
	d.attached(one)
	h.mu.Lock()
	h.plain = true // from the next connection on
	h.mu.Unlock()
	d.stop()
	d.start(nil)
	v := far("far", "x")
	v.Device = "odx"
	d.want(one, change(v))
	waits := func(m *machine.Machine) bool {
		return condition(m, ConditionVolumes).Reason == ReasonRestartNeeded && m.Record.ObservedGeneration == m.Desired.Generation
	}
	d.until("waits for the next start", one, waits)
	d.stop()
	seen.Store(nil)
	d.start(nil)
	m := d.until("taken up", one, func(m *machine.Machine) bool { return seen.Load() != nil && waits(m) })
	if rec, asked := m.Record.Volumes["far"], seen.Load().Volume.Device; asked != "" || rec.Device != "" || !rec.Given || rec.Attached {
		t.Errorf("record %+v, device %q", rec, asked)
	}
	h.with(t, one, func(g *guest) { g.state = vmm.StateIdle; h.tell(g, vmm.EventGuestStopped) })
	if m := d.attached(one); m.Record.Volumes["far"].Device != "odx" {
		t.Errorf("record %+v", m.Record.Volumes["far"])
	}
	d.finish()
}
