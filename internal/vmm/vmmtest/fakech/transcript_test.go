// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"os"
	"testing"
)

// transcript is a sentence about Cloud Hypervisor and the calls that prove it.
type transcript struct {
	sentence string
	boots    bool // needs a guest, so /dev/kvm with a real binary
	run      func(*env)
}

// TestTranscripts replays every sentence against the fake in each dialect, and against a real binary
// named by CLOUD_HYPERVISOR or found on PATH. A sentence that fails on the real one is wrong.
func TestTranscripts(t *testing.T) {
	for _, s := range fakes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			replay(t, s)
		})
	}
}

func TestTranscriptsOnARealBinary(t *testing.T) {
	s, ok := realSubject(t)
	if !ok {
		t.Skip("NO REAL BINARY: the fake is not compared with Cloud Hypervisor; " +
			"set CLOUD_HYPERVISOR or put cloud-hypervisor on PATH")
	}
	t.Run(s.name, func(t *testing.T) { replay(t, s) })
}

func replay(t *testing.T, s subject) {
	all := append(apiTranscripts(), httpTranscripts()...)
	all = append(all, bootTranscripts()...)
	all = append(all, deviceTranscripts()...)
	all = append(all, jsonTranscripts()...)
	all = append(all, endTranscripts()...)
	for _, tr := range all {
		t.Run(tr.sentence, func(t *testing.T) {
			if tr.boots && s.real {
				f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
				if err != nil {
					t.Skipf("NO KVM: this sentence needs a guest on the real binary: %v", err)
				}
				f.Close()
			}
			e := newEnv(t, s)
			if err := tinyELF(e.path("kernel")); err != nil {
				t.Fatal(err)
			}
			tr.run(e)
		})
	}
}

type object = map[string]any

// config is a small machine with a serial socket and whatever else is given.
func (e *env) config(more ...object) object {
	c := object{
		"payload": object{"kernel": e.path("kernel"), "cmdline": "console=ttyS0"},
		"memory":  object{"size": 128 << 20},
		"console": object{"mode": "Off"},
		"serial":  object{"mode": "Socket", "socket": e.path("serial")},
	}
	for _, m := range more {
		for k, v := range m {
			if v == nil {
				delete(c, k)
				continue
			}
			c[k] = v
		}
	}
	return c
}

func (e *env) disk(name, id string, more ...object) object {
	d := object{"path": e.path(name), "image_type": "Raw", "id": id}
	for _, m := range more {
		for k, v := range m {
			d[k] = v
		}
	}
	return d
}

// running starts a VMM that stays, with a booted machine.
func (e *env) running(more ...object) {
	e.t.Helper()
	e.start("--no-shutdown")
	e.put("vm.create", e.config(more...)).done()
	e.put("vm.boot").done()
}

const (
	noBoot   = "The VM could not boot"
	noCreate = "The VM could not be created"
	noDisk   = "The disk could not be added to the VM"
	manager  = "Error from device manager"
	already  = "VM is already created"
	noFile   = "No such file or directory (os error 2)"
	inUse    = "Address already in use (os error 98)"
)

func apiTranscripts() []transcript {
	return []transcript{
		{"without a machine each call says what is missing", false, func(e *env) {
			e.start()
			e.get("vm.info").fails(kindNotCreated, "The VM info is not available", "VM is not created")
			e.put("vm.boot").fails(kindNotCreated, noBoot, "VM config is missing")
			e.put("vm.reboot").fails(kindNotCreated, "The VM could not reboot", "VM is not created")
			e.put("vm.shutdown").fails(kindInternal, "The VM could not shutdown", "VM is not running")
			e.put("vm.pause").fails(kindInternal, "The VM could not be paused", "VM is not running")
			e.put("vm.resume").fails(kindInternal, "The VM could not resume", "VM is not running")
			e.put("vm.power-button").fails(kindInternal, "Error triggering power button", "VM is not running")
			e.put("vm.nmi").fails(kindInternal, "Error triggering NMI", "VM is not running")
			e.get("vm.counters").fails(kindInternal, "The VM info is not available", "VM is not running")
			e.put("vm.add-disk", object{}).fails(kindNotCreated, noDisk, "VM is not created")
			e.put("vm.resize", object{}).fails(kindNotCreated, "The VM could not be resized", "VM is not created")
			e.put("vm.resize-disk", object{"id": "a", "desired_size": 1}).
				fails(kindNotCreated, "The disk could not be resized", "VM is not created")
			e.put("vm.remove-device", object{"id": "a"}).
				fails(kindNotCreated, "The device could not be removed from the VM", "VM is not created")
			e.put("vm.delete").done()
			e.sequence("vmm starting", "vm booting", "vm rebooting")
		}},
		{"ping names the version and the real process", false, func(e *env) {
			e.start()
			var p struct {
				Version string `json:"version"`
				PID     int    `json:"pid"`
			}
			e.decode(e.get("vmm.ping").is(200, ""), &p)
			if p.PID != e.cmd.Process.Pid || p.Version[:2] != e.s.d.semver()[:2] {
				e.t.Errorf("ping %+v, want pid %d and version %s", p, e.cmd.Process.Pid, e.s.d.semver())
			}
		}},
		{"create stores the configuration once and validates nothing", false, func(e *env) {
			e.start()
			bad := e.config(object{"payload": nil, "disks": []object{e.disk("nothing", "a"), e.disk("nothing", "a")}})
			e.put("vm.create", bad).done()
			e.state("Created")
			e.put("vm.create", e.config()).fails(kindInternal, noCreate, already)
			e.put("vm.boot").fails(kindInvalid, noBoot, "Failed to validate config",
				"Payload configuration is not bootable", "No bootitem provided: neither firmware nor kernel")
			e.put("vm.delete").done()
			e.get("vm.info").fails(kindNotCreated, "The VM info is not available", "VM is not created")
			e.sequence("vmm starting", "vm booting", "vm deleted")
		}},
		{"a create that fails on a stale serial socket keeps the configuration", false, func(e *env) {
			e.file("serial", 0)
			e.start()
			e.put("vm.create", e.config()).fails(kindInternal, noCreate, "Error creating console devices",
				"Error creating console device", inUse)
			e.put("vm.create", e.config()).fails(kindInternal, noCreate, already)
			e.state("Created")
			e.put("vm.delete").done()
		}},
		{"deleting a machine that never booted leaves its serial socket in the way", false, func(e *env) {
			e.start()
			e.put("vm.create", e.config()).done()
			e.put("vm.delete").done()
			e.exists(true, "serial")
			e.put("vm.create", e.config()).fails(kindInternal, noCreate, "Error creating console devices",
				"Error creating console device", inUse)
		}},
		{"a console cannot be a socket", false, func(e *env) {
			e.start()
			e.put("vm.create", e.config(object{"console": object{"mode": "Socket"}})).fails(kindInternal, noCreate,
				"Error creating console devices", "No socket option support for console device")
		}},
		{"before boot devices are added and removed in the configuration", false, func(e *env) {
			e.start()
			e.put("vm.create", e.config()).done()
			e.put("vm.add-disk", e.disk("a", "a")).done()
			e.put("vm.add-disk", e.disk("a", "a")).fails(kindConflict, noDisk, "Failed to validate config",
				"Identifier a is not unique")
			e.put("vm.add-net", object{"tap": "tapx", "id": "n"}).done()
			e.put("vm.remove-device", object{"id": "n"}).done()
			e.put("vm.remove-device", object{"id": "n"}).fails(kindNoDevice,
				"The device could not be removed from the VM", `No device with id "n" to remove`)
			e.put("vm.resize-disk", object{"id": "a", "desired_size": 512}).
				fails(kindInternal, "The disk could not be resized", "Failed resizing a disk image")
			if e.count("disks") != 1 || e.count("net") != 0 {
				e.t.Errorf("configuration %v", e.info().Config)
			}
		}},
		{"before boot a resize is stored unchecked", false, func(e *env) {
			e.start()
			e.put("vm.create", e.config()).done()
			e.put("vm.resize", object{"desired_vcpus": 2, "desired_ram": 64 << 20}).done()
			if got := e.info().Actual; got != 64<<20 {
				e.t.Errorf("memory_actual_size %d", got)
			}
			e.put("vm.boot").fails(kindInvalid, noBoot, "Failed to validate config",
				"Max CPUs (1) lower than boot CPUs (2)")
		}},
		{"numbers of descriptors in JSON mean nothing", false, func(e *env) {
			e.start()
			e.put("vm.create", e.config(object{"net": []object{{"fds": []int{70, 71}, "id": "n", "tap": "t"}}})).done()
			e.put("vm.add-net", object{"fds": []int{72}, "id": "o", "tap": "t"}).done()
			for _, n := range e.info().Config["net"].([]any) {
				if fds := n.(object)["fds"]; fds != nil {
					e.t.Errorf("net has fds %v", fds)
				}
			}
		}},
		{"vmm.shutdown answers 200 and ends the process", false, func(e *env) {
			e.start()
			e.put("vm.create", e.config()).done()
			if a := e.put("vmm.shutdown").is(200, ""); a.body != "" {
				e.t.Errorf("body %q", a.body)
			}
			e.ends(0)
			e.exists(false, "api")
			e.sequence("vmm starting", "vm deleted", "vmm shutdown")
		}},
	}
}
