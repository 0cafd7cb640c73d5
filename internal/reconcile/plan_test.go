// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

func TestPlansSayWhatIsStillNeeded(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(d time.Duration) *time.Time { t := now.Add(-d); return &t }
	image := "registry/image:1"
	full := machine.Desired{
		Power: machine.PowerOn, Volumes: []machine.Volume{{Name: "root", LocalDisk: &machine.LocalDisk{Image: &image}}, {Name: "data", LocalDisk: &machine.LocalDisk{}}},
		NICs: []machine.NetworkInterface{{Name: "n"}},
	}
	off, deleted := full, full
	off.Power = machine.PowerOff
	deleted.DeletedAt = ago(time.Second)
	prepare := []string{"image.resolve", "volume.prepare(root)", "volume.prepare(data)", "nic.prepare(n)"}
	with := func(more ...string) []string { return append(append([]string{}, prepare...), more...) }
	record := func(v machine.VMMRecord) machine.Record {
		return machine.Record{
			VMM:     &v,
			Volumes: map[string]machine.VolumeRecord{"root": {Handle: "r", Given: true, Boot: true}, "data": {Handle: "d", Given: true}},
			NICs:    map[string]machine.NICRecord{"n": {Plugin: "p", Given: true, Definition: "same"}},
		}
	}
	had := vmm.Observation{Disks: []string{"disk-data", "disk-root"}, NICs: []string{"nic-n"}}
	devices := DeviceView{Times: DeviceTimes{Keep: time.Minute}, Known: map[Device]DeviceMemory{{NIC: true, Name: "n"}: {Applied: true}}, Wires: map[string]Wire{"n": {Definition: "same"}}}
	for _, c := range []struct {
		name    string
		desired machine.Desired
		record  machine.Record
		process ProcessState
		vm      vmm.State
		steps   []string
		wait    time.Duration
	}{
		{name: "a new machine is prepared, launched, created and booted", desired: full, process: ProcessNone, steps: with("vmm.launch", "vmm.create", "vmm.boot")},
		{
			name: "what a machine was told to let go of goes before it starts", desired: full, process: ProcessNone,
			record: machine.Record{
				Volumes: map[string]machine.VolumeRecord{"far": {Handle: "h", Remote: true, Held: true}, "kept": {Handle: "k", RetiredAt: now}},
				NICs:    map[string]machine.NICRecord{"old": {Plugin: "p"}},
			},
			steps: []string{"volume.release(far)", "nic.release(old)"}, wait: time.Minute,
		},
		{
			name: "what is kept for a while does not keep it from starting", desired: full, process: ProcessNone,
			record: machine.Record{Volumes: map[string]machine.VolumeRecord{"kept": {Handle: "k", RetiredAt: now}}},
			steps:  with("vmm.launch", "vmm.create", "vmm.boot"),
		},
		{name: "a running machine needs nothing", desired: full, record: record(machine.VMMRecord{}), process: ProcessAlive, vm: vmm.StateRunning},
		{name: "a VMM without a VM gets one", desired: full, record: record(machine.VMMRecord{}), process: ProcessAlive, vm: vmm.StateEmpty, steps: with("vmm.create", "vmm.boot")},
		{name: "a VM that never ran is created anew if need be and booted", desired: full, record: record(machine.VMMRecord{}), process: ProcessAlive, vm: vmm.StateIdle, steps: with("vmm.create", "vmm.boot")},
		{name: "a guest that went down by itself is noted first", desired: full, record: record(machine.VMMRecord{BootedAt: ago(time.Minute)}), process: ProcessAlive, vm: vmm.StateIdle, steps: []string{"guest.stopped"}},
		{name: "a paused guest goes on", desired: full, record: record(machine.VMMRecord{BootedAt: ago(time.Minute)}), process: ProcessAlive, vm: vmm.StatePaused, steps: []string{"vmm.boot"}},
		{name: "a guest that cannot go on is ended", desired: full, record: record(machine.VMMRecord{BootedAt: ago(time.Minute)}), process: ProcessAlive, vm: vmm.StateFailed, steps: []string{"vmm.kill"}},
		{name: "a VMM that ended is reaped", desired: full, record: record(machine.VMMRecord{}), process: ProcessGone, steps: []string{"vmm.reap"}},
		{name: "a restart waits for its time", desired: full, record: machine.Record{RestartAt: now.Add(4 * time.Second)}, process: ProcessNone, wait: 4 * time.Second},
		{name: "a clock set back does not hold a restart up", desired: full, record: machine.Record{RestartAt: now.Add(time.Hour)}, process: ProcessNone, steps: with("vmm.launch", "vmm.create", "vmm.boot")},
		{name: "nor that of a guest in its VMM", desired: full, record: func() machine.Record { r := record(machine.VMMRecord{}); r.RestartAt = now.Add(time.Hour); return r }(), process: ProcessAlive, vm: vmm.StateIdle, steps: with("vmm.create", "vmm.boot")},
		{name: "a spawn that was cut off may yet appear", desired: full, record: record(machine.VMMRecord{LaunchedAt: *ago(time.Second)}), process: ProcessIntended, wait: 2 * time.Second},
		{name: "a spawn that never appeared is cleared", desired: full, record: record(machine.VMMRecord{LaunchedAt: *ago(time.Minute)}), process: ProcessIntended, steps: []string{"vmm.reap"}},
		{name: "a clock set back does not make it wait", desired: full, record: record(machine.VMMRecord{LaunchedAt: now.Add(time.Hour)}), process: ProcessIntended, steps: []string{"vmm.reap"}},
		{name: "a running guest stays with the hypervisor that runs it", desired: full, record: record(machine.VMMRecord{Driver: "old"}), process: ProcessAlive, vm: vmm.StateRunning},
		{name: "one that went down makes room for the new hypervisor", desired: full, record: record(machine.VMMRecord{Driver: "old", BootedAt: ago(time.Minute)}), process: ProcessAlive, vm: vmm.StateIdle, steps: []string{"vmm.stop"}},
		{name: "so does one that was never given a guest", desired: full, record: record(machine.VMMRecord{Driver: "old"}), process: ProcessAlive, vm: vmm.StateEmpty, steps: []string{"vmm.stop"}},
		{name: "power off stops", desired: off, record: record(machine.VMMRecord{}), process: ProcessAlive, vm: vmm.StateRunning, steps: []string{"vmm.stop"}},
		{name: "power off waits for the VMM to end", desired: off, record: record(machine.VMMRecord{StopAskedAt: ago(time.Second)}), process: ProcessAlive, wait: stopPatience - time.Second},
		{name: "power off kills what does not end", desired: off, record: record(machine.VMMRecord{StopAskedAt: ago(time.Minute)}), process: ProcessAlive, steps: []string{"vmm.kill"}},
		{name: "a machine that is off needs nothing", desired: off, process: ProcessNone},
		{name: "power on again finishes the stop first", desired: full, record: record(machine.VMMRecord{StopAskedAt: ago(time.Second)}), process: ProcessAlive, vm: vmm.StateRunning, wait: stopPatience - time.Second},
		{name: "deletion stops a running VMM first", desired: deleted, record: record(machine.VMMRecord{}), process: ProcessAlive, vm: vmm.StateRunning, steps: []string{"vmm.stop"}},
		{name: "deletion waits for a spawn that was cut off", desired: deleted, record: record(machine.VMMRecord{LaunchedAt: *ago(time.Second)}), process: ProcessIntended, wait: 2 * time.Second},
		{
			name: "deletion removes everything that was made, the record last", desired: deleted, process: ProcessNone,
			record: machine.Record{Volumes: map[string]machine.VolumeRecord{"root": {}, "data": {}}, NICs: map[string]machine.NICRecord{"n": {}}},
			steps:  []string{"nic.release(n)", "volume.delete(data)", "volume.delete(root)", "directory.remove", "record.remove"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			had.State = c.vm
			plan := MakePlan(View{Machine: &machine.Machine{Desired: c.desired, Record: c.record}, Process: c.process, VM: had, Now: now, DeviceView: devices})
			var steps []string
			for _, s := range plan.Steps {
				steps = append(steps, s.String())
			}
			if diff := cmp.Diff(c.steps, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if plan.Wait != c.wait {
				t.Errorf("wait %s, want %s", plan.Wait, c.wait)
			}
		})
	}
}

func TestTheQueueNeverHandsOutAKeyTwiceAtOnce(t *testing.T) {
	q := NewQueue(nil)
	var mu sync.Mutex
	busy, got := map[string]bool{}, map[string]int{}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var workers, adders sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for {
				key, _, ok := q.Get(ctx)
				if !ok {
					return
				}
				mu.Lock()
				if busy[key] {
					t.Errorf("%s is handed out twice", key)
				}
				busy[key] = true
				mu.Unlock()
				mu.Lock()
				busy[key] = false
				got[key]++
				mu.Unlock()
				q.Done(key)
			}
		})
	}
	for w := range 4 {
		adders.Go(func() {
			for i := range 2000 {
				q.AddAfter(fmt.Sprint((i+w)%17), time.Duration(i%3)*time.Microsecond)
			}
		})
	}
	adders.Wait()
	for q.Len() > 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	q.Close()
	workers.Wait()
	if len(got) != 17 {
		t.Errorf("%d keys came out, want 17", len(got))
	}
}

func TestAKeyAddedWhileItIsWorkedOnComesOutAgain(t *testing.T) {
	q := NewQueue(nil)
	q.Add("a")
	if key, _, ok := q.Get(t.Context()); !ok || key != "a" {
		t.Fatal(key, ok)
	}
	q.AddAfter("a", time.Hour)
	q.Add("a") // the earlier time holds
	q.Done("a")
	if key, _, ok := q.Get(t.Context()); !ok || key != "a" {
		t.Fatal(key, ok)
	}
	q.Done("a")
	if n := q.Len(); n != 0 {
		t.Errorf("%d keys left", n)
	}
}

func TestBackoffGrowsToItsCap(t *testing.T) {
	for n, want := range map[int]time.Duration{0: time.Second, 1: 2 * time.Second, 4: 16 * time.Second, 5: 30 * time.Second, 400: 30 * time.Second} {
		if got := capped(time.Second, n, 30*time.Second); got != want {
			t.Errorf("after %d failures %s, want %s", n, got, want)
		}
	}
}
