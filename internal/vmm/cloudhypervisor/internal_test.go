// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

func TestEventsAreTranslatedOrLeftOut(t *testing.T) {
	for name, tc := range map[string]struct {
		in   api.Event
		want vmm.Event // Kind is empty if it is left out
	}{
		"booted":         {api.Event{Source: "vm", Event: "booted"}, vmm.Event{Kind: vmm.EventBooted}},
		"booting":        {api.Event{Source: "vm", Event: "booting"}, vmm.Event{}},
		"stopped":        {api.Event{Source: "vm", Event: "shutdown"}, vmm.Event{Kind: vmm.EventGuestStopped}},
		"rebooted":       {api.Event{Source: "vm", Event: "rebooted"}, vmm.Event{Kind: vmm.EventGuestReset}},
		"rebooting":      {api.Event{Source: "vm", Event: "rebooting"}, vmm.Event{}},
		"deleted":        {api.Event{Source: "vm", Event: "deleted"}, vmm.Event{}},
		"panic":          {api.Event{Source: "guest", Event: "panic", Properties: map[string]string{"event": "panic"}}, vmm.Event{Kind: vmm.EventGuestPanicked, Reason: "panic"}},
		"removed":        {api.Event{Source: "vm", Event: "device-removed", Properties: map[string]string{"id": "disk-a", "bdf": "0000:00:03.0"}}, vmm.Event{Kind: vmm.EventDeviceRemoved, Device: "disk-a"}},
		"device reset":   {api.Event{Source: "virtio-device", Event: "reset"}, vmm.Event{}},
		"of the future":  {api.Event{Source: "vm", Event: "danced"}, vmm.Event{}},
		"vmm's starting": {api.Event{Source: "vmm", Event: "starting"}, vmm.Event{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := translate(tc.in)
			if diff := cmp.Diff(tc.want, got); diff != "" || ok != (tc.want.Kind != "") {
				t.Errorf("told %v, event (-want +got):\n%s", ok, diff)
			}
		})
	}
}

// A reader sees each event, or an EventResync in the place of those that are missing.
func TestNoEventIsMissingWithoutNotice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newEventQueue()
		next, expected := 0, 0
		for range rapid.IntRange(1, 6).Draw(t, "turns") {
			for range rapid.IntRange(0, 2*queuedEvents).Draw(t, "written") {
				q.take(api.Batch{Events: []api.Event{{Source: "vm", Event: "device-removed", Properties: map[string]string{"id": fmt.Sprint(next)}}}})
				next++
			}
			resynced := false
			for range rapid.IntRange(0, len(q.c)).Draw(t, "read") {
				switch e := <-q.c; {
				case e.Kind == vmm.EventResync:
					resynced = true
				case e.Device == fmt.Sprint(expected):
					expected++
					resynced = false
				case resynced:
					if _, err := fmt.Sscan(e.Device, &expected); err != nil {
						t.Fatal(err)
					}
					expected++
					resynced = false
				default:
					t.Fatalf("event %s comes instead of %d, without notice", e.Device, expected)
				}
			}
			if resynced {
				// What follows may have any number; the queue's head tells.
				for len(q.c) > 0 {
					<-q.c
				}
				expected = next
			}
		}
		q.close()
		q.take(api.Batch{Lost: true})
		q.close()
	})
}

func TestTheVMMsOwnEndClosesTheQueue(t *testing.T) {
	q := newEventQueue()
	q.take(api.Batch{Events: []api.Event{{Source: "vm", Event: "shutdown"}, {Source: "vmm", Event: "shutdown"}, {Source: "vm", Event: "booted"}}})
	if e := <-q.c; e.Kind != vmm.EventGuestStopped {
		t.Errorf("event is %v", e)
	}
	if e, ok := <-q.c; ok {
		t.Errorf("event %v comes after the end", e)
	}
	q.close()
}

func driverFor(arch string) *Driver {
	return &Driver{opts: Options{Arch: arch, Firmware: "/fw"}}
}

func testConfig() vmm.Config {
	return vmm.Config{
		Ref:         vmm.Ref{MachineID: "6f7d0d0a-2d2c-4f55-9e0c-b8d4c1f9f001", RuntimeDir: "/run/x", StateDir: "/var/x"},
		CPUs:        2,
		MemoryBytes: 1 << 30,
		Boot:        vmm.Boot{Kernel: "/k", Initramfs: "/i", CommandLine: "console=ttyS0"},
		Disks: []vmm.Disk{
			{ID: "disk-a", Path: "/a", Serial: "oda"},
			{ID: "disk-b", Path: "/b", Serial: "odb", ReadOnly: true},
		},
		NICs:     []vmm.NIC{{ID: "nic-a", MAC: "02:00:00:00:00:01", Kind: vmm.NICTap, Tap: "tap0"}},
		Ignition: &vmm.Ignition{Transport: vmm.IgnitionDisk, Data: []byte("{}")},

		GuestAgent: true,
	}
}

func TestADefinitionHoldsTheWholeMachine(t *testing.T) {
	want := api.VMConfig{
		CPUs:    api.CPUs{Boot: 2, Max: 2},
		Memory:  api.Memory{Size: 1 << 30},
		Payload: &api.Payload{Kernel: "/k", Initramfs: "/i", CmdLine: "console=ttyS0"},
		Disks: []api.Disk{
			{ID: "disk-a", Path: "/a", Serial: "oda", ImageType: "Raw"},
			{ID: "disk-b", Path: "/b", Serial: "odb", ReadOnly: true, ImageType: "Raw"},
			{ID: "ignition-config", Path: "/run/x/ignition.img", Serial: "ignition", ReadOnly: true, ImageType: "Raw"},
		},
		Net:      []api.Net{{ID: "nic-a", Tap: "tap0", MAC: "02:00:00:00:00:01", NumQueues: 2}},
		RNG:      &api.RNG{Src: "/dev/urandom"},
		Serial:   &api.Serial{Mode: "Socket", Socket: "/run/x/serial.sock"},
		Console:  &api.Console{Mode: "Off"},
		Vsock:    &api.Vsock{ID: "guest-agent", CID: 3, Socket: "/run/x/vsock.sock"},
		Platform: &api.Platform{SystemUUID: "6f7d0d0a-2d2c-4f55-9e0c-b8d4c1f9f001"},
		PVPanic:  true,
	}
	if diff := cmp.Diff(want, driverFor("amd64").vmConfig(testConfig(), 53)); diff != "" {
		t.Errorf("definition (-want +got):\n%s", diff)
	}
}

func TestTheUUIDGoesByTheNameOfTheVersion(t *testing.T) {
	for major, want := range map[int]api.Platform{52: {UUID: "u"}, 53: {SystemUUID: "u"}, 54: {SystemUUID: "u"}} {
		cfg := vmm.Config{Ref: vmm.Ref{MachineID: "u"}}
		if diff := cmp.Diff(want, *driverFor("amd64").vmConfig(cfg, major).Platform); diff != "" {
			t.Errorf("v%d (-want +got):\n%s", major, diff)
		}
	}
}

func TestIgnitionGoesAsAnOEMString(t *testing.T) {
	cfg := testConfig()
	cfg.Ignition = &vmm.Ignition{Transport: vmm.IgnitionSMBIOS, Data: []byte("{\"a\":\"ü\"}")}
	got := driverFor("amd64").vmConfig(cfg, 53)
	want := []string{"opt/com.coreos/config=eyJhIjoiw7wifQ=="}
	if diff := cmp.Diff(want, got.Platform.OEMStrings); diff != "" {
		t.Errorf("OEM strings (-want +got):\n%s", diff)
	}
	if len(got.Disks) != len(cfg.Disks) {
		t.Errorf("disks are %v", got.Disks)
	}
}

func TestLandlockIsAnOption(t *testing.T) {
	d := driverFor("amd64")
	if c := d.vmConfig(testConfig(), 53); c.LandlockEnable || c.LandlockRules != nil {
		t.Errorf("it is on by default: %+v", c)
	}
	d.opts.Landlock, d.opts.LandlockPaths = true, []string{"/var/lib/volumes"}
	c := d.vmConfig(testConfig(), 53)
	want := []api.LandlockRule{{Path: "/run/x", Access: "rw"}, {Path: "/var/lib/volumes", Access: "rw"}}
	if diff := cmp.Diff(want, c.LandlockRules); diff != "" || !c.LandlockEnable {
		t.Errorf("enabled %v, rules (-want +got):\n%s", c.LandlockEnable, diff)
	}
}

func TestDefinitionsAreComparedByWhatIsSet(t *testing.T) {
	d := driverFor("amd64")
	want := d.vmConfig(testConfig(), 53)
	if same := d.vmConfig(testConfig(), 52); !sameDefinition(want, same) {
		t.Error("the name of the UUID makes a difference")
	}
	for name, change := range map[string]func(*vmm.Config){
		"CPUs":     func(c *vmm.Config) { c.CPUs++ },
		"memory":   func(c *vmm.Config) { c.MemoryBytes *= 2 },
		"kernel":   func(c *vmm.Config) { c.Boot.Kernel = "/other" },
		"cmdline":  func(c *vmm.Config) { c.Boot.CommandLine = "" },
		"disk":     func(c *vmm.Config) { c.Disks[0].Path = "/other" },
		"no disk":  func(c *vmm.Config) { c.Disks = nil },
		"MAC":      func(c *vmm.Config) { c.NICs[0].MAC = "02:00:00:00:00:02" },
		"no NIC":   func(c *vmm.Config) { c.NICs = nil },
		"ignition": func(c *vmm.Config) { c.Ignition = nil },
		"agent":    func(c *vmm.Config) { c.GuestAgent = false },
		"machine":  func(c *vmm.Config) { c.MachineID = "7f7d0d0a-2d2c-4f55-9e0c-b8d4c1f9f001" },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig()
			change(&cfg)
			if sameDefinition(want, d.vmConfig(cfg, 53)) {
				t.Error("the difference is not seen")
			}
		})
	}
}

func TestEveryAnswerHasAMeaning(t *testing.T) {
	for _, m := range meanings() {
		err := fail("do", fmt.Errorf("call: %w", m.is))
		if machine.KindOf(err) != m.kind {
			t.Errorf("%v is %v, want %v", m.is, machine.KindOf(err), m.kind)
		}
	}
	if err := fail("do", vmm.ErrIdentity); !errors.Is(err, vmm.ErrIdentity) || machine.KindOf(err) != machine.Unknown {
		t.Errorf("ErrIdentity became %v", err)
	}
	if err := fail("do", nil); err != nil {
		t.Errorf("nothing became %v", err)
	}
}
