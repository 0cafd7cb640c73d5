// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

func TestPlansForOneVolumeSayWhatIsStillNeeded(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const size = 8 << 20
	local, remote := near("v", size), far("v", "h")
	made := machine.VolumeRecord{Identity: "near", Handle: "h", SizeBytes: size, Held: true}
	given := made
	given.Given, given.GuestBytes = true, size
	with := func(r machine.VolumeRecord, fn func(*machine.VolumeRecord)) *machine.VolumeRecord { fn(&r); return &r }
	in := []string{"disk-v"}
	for _, c := range []struct {
		name  string
		want  *machine.Volume
		rec   *machine.VolumeRecord
		shown []string
		bytes int64
		off   bool
		plain bool
		going bool // the VMM says that the guest was asked to let go
		known DeviceMemory
		steps []string
		note  string
		wait  time.Duration
	}{
		{name: "a new volume is prepared and attached", want: &local, steps: []string{"volume.prepare(v)", "volume.attach(v)"}},
		{name: "while the machine is off it waits for the start", want: &local, off: true},
		{name: "so it does in a VMM that cannot change", want: &local, plain: true, note: ReasonRestartNeeded},
		{name: "one that the guest has needs nothing", want: &local, rec: &given, shown: in},
		{name: "one that the guest has lost is attached again", want: &local, rec: &given, steps: []string{"volume.prepare(v)", "volume.attach(v)"}},
		{name: "one that nobody wants settles first", rec: &given, shown: in, known: DeviceMemory{Missing: now}, wait: time.Second},
		{name: "then the guest is asked to let go", rec: &given, shown: in, known: DeviceMemory{Missing: ago(time.Minute)}, steps: []string{"volume.detach(v)"}},
		{name: "it is asked again only after a while", rec: with(given, func(r *machine.VolumeRecord) { r.AskedAt = ago(time.Minute) }), shown: in, known: DeviceMemory{Asked: ago(time.Second)}, note: ReasonDetachPending, wait: 4 * time.Second},
		{name: "and then again", rec: with(given, func(r *machine.VolumeRecord) { r.AskedAt = ago(time.Minute) }), shown: in, known: DeviceMemory{Asked: ago(5 * time.Second)}, steps: []string{"volume.detach(v)"}},
		{name: "that it has let go is proven before anything is released", rec: with(given, func(r *machine.VolumeRecord) { r.AskedAt = ago(time.Minute) }), known: DeviceMemory{Asked: now}, steps: []string{"volume.detach(v)"}},
		{name: "once it has let go it is released", rec: &made, steps: []string{"volume.release(v)"}},
		{name: "its data are kept for a while", rec: with(made, func(r *machine.VolumeRecord) { r.RetiredAt = ago(time.Minute) }), wait: 9 * time.Minute},
		{name: "and removed then", rec: with(made, func(r *machine.VolumeRecord) { r.RetiredAt = ago(time.Hour) }), steps: []string{"volume.delete(v)"}},
		{name: "a clock set back costs no data", rec: with(made, func(r *machine.VolumeRecord) { r.RetiredAt = now.Add(time.Hour) }), wait: 10 * time.Minute},
		{name: "one that comes back is taken up again", want: &local, rec: with(made, func(r *machine.VolumeRecord) { r.RetiredAt = ago(time.Hour) }), steps: []string{"volume.prepare(v)", "volume.attach(v)"}},
		{name: "also while the machine is off", want: &local, off: true, rec: with(made, func(r *machine.VolumeRecord) { r.RetiredAt = ago(time.Hour) }), steps: []string{"volume.prepare(v)"}},
		{name: "one that was never made leaves nothing to keep", rec: &machine.VolumeRecord{Identity: "near", Held: true}, steps: []string{"volume.release(v)", "volume.delete(v)"}},
		{name: "another medium makes the guest let go first", want: &remote, rec: &given, shown: in, steps: []string{"volume.detach(v)"}},
		{name: "then the data go, and the other one comes", want: &remote, rec: &made, steps: []string{"volume.release(v)", "volume.delete(v)", "volume.prepare(v)", "volume.attach(v)"}},
		{name: "what is kept elsewhere is released alone", want: &local, rec: with(made, func(r *machine.VolumeRecord) { r.Identity, r.Remote = "far h", true }), steps: []string{"volume.release(v)", "volume.prepare(v)", "volume.attach(v)"}},
		{name: "what a removal has begun it finishes first", want: &local, rec: with(made, func(r *machine.VolumeRecord) { r.Doomed = true }), steps: []string{"volume.delete(v)", "volume.prepare(v)", "volume.attach(v)"}},
		{name: "another device name takes it out and in", want: with2(local, func(v *machine.Volume) { v.Device = "odx" }), rec: &given, shown: in, steps: []string{"volume.detach(v)"}},
		{name: "the boot disk stays until the next start", rec: with(given, func(r *machine.VolumeRecord) { r.Boot = true }), shown: in, known: DeviceMemory{Missing: ago(time.Hour)}, note: ReasonRestartNeeded},
		{name: "a VMM that cannot change keeps it until then, too", rec: &given, shown: in, plain: true, note: ReasonRestartNeeded},
		{name: "what serves a disk that stays until then is taken up", want: with2(remote, func(v *machine.Volume) { v.Device = "odx" }), rec: with(given, func(r *machine.VolumeRecord) { r.Identity, r.Remote, r.Boot = "far h", true, true }), shown: in, note: ReasonRestartNeeded, steps: []string{"volume.prepare(v)"}},
		{name: "but not that of one that gives way to another", want: &remote, rec: with(given, func(r *machine.VolumeRecord) { r.Identity, r.Remote, r.Boot = "far x", true, true }), shown: in, note: ReasonRestartNeeded},
		{name: "a larger size is made and told", want: &local, rec: with(given, func(r *machine.VolumeRecord) { r.SizeBytes = 1 }), shown: in, steps: []string{"volume.resize(v)"}},
		{name: "one that was made is told", want: &local, rec: with(given, func(r *machine.VolumeRecord) { r.GuestBytes = 1 }), shown: in, steps: []string{"volume.resize(v)"}},
		{name: "what the VMM shows counts more than what it was told", want: &local, rec: &given, shown: in, bytes: 1, steps: []string{"volume.resize(v)"}},
		{name: "a smaller size is nothing to do", want: with2(local, func(v *machine.Volume) { v.LocalDisk.SizeBytes = 1 }), rec: &given, shown: in},
		{name: "it grows without a guest", want: &local, off: true, rec: with(made, func(r *machine.VolumeRecord) { r.SizeBytes = 1 }), steps: []string{"volume.prepare(v)"}},
		{name: "while the machine is off nothing of another server is held", want: &remote, off: true, rec: &machine.VolumeRecord{Identity: "far h", Remote: true, Handle: "h", Held: true}, steps: []string{"volume.release(v)"}},
		{name: "not even what could not be made ready", want: &remote, off: true, rec: &machine.VolumeRecord{Identity: "far h", Remote: true, Held: true}, steps: []string{"volume.release(v)"}},
		{name: "but data of the host stay ready", want: &local, off: true, rec: &made},
		{name: "one that is wanted again although its guest may yet let go of it is seen through", want: &local, rec: with(given, func(r *machine.VolumeRecord) { r.AskedAt = ago(time.Minute) }), shown: in, going: true, known: DeviceMemory{Asked: ago(5 * time.Second)}, steps: []string{"volume.detach(v)"}},
		{name: "one that is wanted again and that no guest was asked about stays", want: &local, rec: with(given, func(r *machine.VolumeRecord) { r.AskedAt = ago(time.Minute) }), shown: in},
		{name: "what failed waits its time", want: &local, known: DeviceMemory{Block: Block{Until: now.Add(time.Second), Reason: "broken"}}, note: "broken", wait: time.Second},
		{name: "a record of an older version is what is wanted", want: &local, rec: with(given, func(r *machine.VolumeRecord) { r.Identity = "" }), shown: in},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &machine.Machine{Record: machine.Record{Volumes: map[string]machine.VolumeRecord{}}}
			v := View{Machine: m, Process: ProcessAlive, Now: now, VM: vmm.Observation{State: vmm.StateRunning, Disks: c.shown}}
			v.Plugger, v.Times = !c.plain, DeviceTimes{Repeat: 5 * time.Second, Settle: time.Second, Keep: 10 * time.Minute}
			v.Known = map[Device]DeviceMemory{{Name: "v"}: c.known}
			if c.want != nil {
				m.Desired.Volumes = []machine.Volume{*c.want}
				v.Media = map[string]string{"v": volumes{}.Identity(*c.want)}
			}
			if c.rec != nil {
				m.Record.Volumes["v"] = *c.rec
			}
			if c.bytes > 0 {
				v.VM.DiskBytes = map[string]int64{"disk-v": c.bytes}
			}
			if c.going {
				v.VM.Leaving = c.shown
			}
			if c.off {
				v.Process = ProcessNone
			}
			plan := planDevices(v)
			var steps []string
			for _, s := range plan.Steps {
				steps = append(steps, s.String())
			}
			if diff := cmp.Diff(c.steps, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			note := ""
			for _, n := range plan.Notes {
				note += n.Reason
			}
			if note != c.note || plan.Wait != c.wait {
				t.Errorf("note %q, wait %s; want %q, %s", note, plan.Wait, c.note, c.wait)
			}
		})
	}
}

func with2(v machine.Volume, fn func(*machine.Volume)) *machine.Volume {
	v = v.Clone()
	fn(&v)
	return &v
}

func TestAMachineBootsFromTheSameVolumeWhateverTheOrderOfItsList(t *testing.T) {
	image, none := "registry/image:1", ""
	vol := func(name, device string) machine.Volume {
		return machine.Volume{Name: name, Device: device, Connection: &machine.Connection{}}
	}
	disk := func(name, device string, image *string) machine.Volume {
		return machine.Volume{Name: name, Device: device, LocalDisk: &machine.LocalDisk{Image: image}}
	}
	for _, c := range []struct {
		name    string
		volumes []machine.Volume
		first   string
	}{
		{"a root volume whose key was changed comes back last", []machine.Volume{vol("data", "odb"), vol("root", "oda")}, "root"},
		{"the image counts more than the device", []machine.Volume{vol("data", "oda"), disk("root", "odb", &image)}, "root"},
		{"an empty image is none", []machine.Volume{disk("data", "odb", &none), vol("root", "oda")}, "root"},
		{"after z comes aa", []machine.Volume{vol("data", "odaa"), vol("root", "odz")}, "root"},
		{"without devices the order counts", []machine.Volume{vol("root", ""), vol("data", "")}, "root"},
		{"one without a device that is first stays first", []machine.Volume{vol("root", ""), vol("data", "oda")}, "root"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := bootFirst(&machine.Desired{Volumes: c.volumes})
			if len(got) != len(c.volumes) || got[0].Name != c.first {
				t.Errorf("order is %v", got)
			}
		})
	}
}

func TestAWishTakenBackCountsOnceTheGuestIsAskedNoMore(t *testing.T) {
	asked := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	local := near("v", 1)
	m := &machine.Machine{Desired: machine.Desired{Volumes: []machine.Volume{local}}}
	v := View{Machine: m, Process: ProcessAlive, VM: vmm.Observation{State: vmm.StateRunning, Disks: []string{"disk-v"}, Leaving: []string{"disk-v"}}}
	v.Media = map[string]string{"v": volumes{}.Identity(local)}
	rec := machine.Record{Volumes: map[string]machine.VolumeRecord{"v": {Identity: "near", Given: true, AskedAt: asked, Attached: true}}}
	attach(&rec, v)
	if got := rec.Volumes["v"]; got.Attached || got.AskedAt.IsZero() {
		t.Errorf("while it may yet go: %+v", got)
	}
	v.VM.Leaving = nil
	attach(&rec, v)
	if got := rec.Volumes["v"]; !got.Attached || !got.AskedAt.IsZero() {
		t.Errorf("once it stays: %+v", got)
	}
}

// TestWhatIsToldOfDevicesIsNoFormat: some clients and tools expand what looks like one.
func TestWhatIsToldOfDevicesIsNoFormat(t *testing.T) {
	h, d := running(t, func(h *host, _ *daemon) { h.lets = func(string) unplug { return refuses } })
	h.fail("resize", machine.Errorf(machine.Unimplemented, "the path cannot tell"))
	d.want(one, add(near("data", 1<<20), far("far", "x")))
	d.attached(one)
	d.want(one, change(near("data", 8<<20)))
	d.until("RebootNeeded", one, func(m *machine.Machine) bool { return condition(m, ConditionVolumes).Reason == "RebootNeeded" })
	d.want(one, drop("far"))
	d.until("DetachPending", one, func(m *machine.Machine) bool {
		return strings.Contains(condition(m, ConditionVolumes).Message, "asked to let go") && d.told.has(ReasonDetachPending)
	})
	d.told.mu.Lock()
	texts := append([]string{detachPending(time.Now())}, d.told.texts...)
	d.told.mu.Unlock()
	m, err := d.store.Get(one)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range append(texts, condition(m, ConditionVolumes).Message) {
		if strings.Contains(text, "%") {
			t.Errorf("%q", text)
		}
	}
	d.finish()
}
