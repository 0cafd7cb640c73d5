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

// versioned is a later version of the same plugin, which calls media something else.
type versioned struct {
	volumes
	seen *atomic.Pointer[volume.Request] // the last remote one
}

func (p versioned) Identity(v machine.Volume) string {
	if v.Connection != nil {
		return "v1 remote " + v.Connection.Handle
	}
	return "v1 " + p.volumes.Identity(v)
}

func (p versioned) Prepare(ctx context.Context, req volume.Request) (volume.Prepared, error) {
	if req.Volume.Connection != nil {
		p.seen.Store(&req)
	}
	return p.volumes.Prepare(ctx, req)
}

func TestAVersionThatCallsMediaSomethingElseDisturbsNoGuest(t *testing.T) {
	h, d := running(t, nil)
	d.want(one, add(near("data", 1<<20), far("far", "x"), near("kept", 1<<20)))
	d.attached(one)
	d.want(one, drop("kept"))
	d.until("kept", one, func(m *machine.Machine) bool { return !m.Record.Volumes["kept"].RetiredAt.IsZero() && d.asWanted(m) })
	root, data, kept := h.data[one+"/root"], h.data[one+"/data"], h.data[one+"/kept"]
	disturbed := func() int { return h.read(func() int { return h.asked["detach"] + h.asked["attach"] + h.starts }) }
	before := disturbed()
	d.stop()
	var seen atomic.Pointer[volume.Request]
	d.tweak = func(o *Options) { o.Volumes = []volume.Plugin{versioned{volumes{h}, &seen}} }
	d.start(nil)
	d.until("renamed", one, func(m *machine.Machine) bool {
		return m.Record.Volumes["root"].Identity == "imaginary v1 near registry/image:1" &&
			m.Record.Volumes["far"].Identity == "imaginary v1 remote x" && d.asWanted(m)
	})
	if disturbed() != before || h.data[one+"/root"] != root || h.data[one+"/data"] != data {
		t.Error("the guest was disturbed")
	}
	d.want(one, add(near("kept", 1<<20)))
	d.attached(one)
	if h.data[one+"/kept"] != kept {
		t.Error("kept data were lost")
	}
	// From now on media are told apart again.
	d.want(one, change(far("far", "y")))
	d.attached(one)
	d.finish()
}

func TestAVolumeThatIsReachedInAnotherWayIsPreparedSoAndStaysInItsGuest(t *testing.T) {
	var seen atomic.Pointer[volume.Request]
	h, d := running(t, func(h *host, d *daemon) {
		d.tweak = func(o *Options) { o.Volumes = []volume.Plugin{versioned{volumes{h}, &seen}} }
	})
	v := far("far", "x")
	v.Connection.Attributes = map[string]string{"monitors": "a"}
	d.want(one, add(v))
	d.attached(one)
	v = v.Clone()
	v.Connection.Attributes["monitors"] = "b"
	d.want(one, change(v))
	d.until("prepared anew", one, func(m *machine.Machine) bool {
		return seen.Load().Volume.Connection.Attributes["monitors"] == "b" && d.asWanted(m)
	})
	if n := h.read(func() int { return h.asked["detach"] }); n > 0 {
		t.Errorf("it was taken out %d times", n)
	}
	d.finish()
}

func TestRecordsOfOlderVersionsAreTakenAsTheyAre(t *testing.T) {
	h, d := running(t, nil)
	_, err := d.store.UpdateRecord(t.Context(), one, func(rec *machine.Record) error {
		v, n := rec.Volumes["root"], rec.NICs["primary"]
		rec.Volumes["root"] = machine.VolumeRecord{Plugin: v.Plugin, Handle: v.Handle, Path: v.Path, Serial: v.Serial, SizeBytes: v.SizeBytes, Attached: true}
		rec.NICs["primary"] = machine.NICRecord{Plugin: n.Plugin, Handle: n.Handle, MAC: n.MAC, Attached: true}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	d.stop()
	d.start(nil)
	m := d.until("completed", one, func(m *machine.Machine) bool { return m.Record.Volumes["root"].Identity != "" && d.asWanted(m) })
	if v, n := m.Record.Volumes["root"], m.Record.NICs["primary"]; !v.Given || !v.Boot || !n.Given || n.Definition == "" {
		t.Errorf("records %+v, %+v", v, n)
	}
	if h.read(func() int { return h.asked["detach"] + h.asked["attach"] }) != 0 || h.starts != 1 {
		t.Error("the guest was disturbed")
	}
	d.finish()
}
