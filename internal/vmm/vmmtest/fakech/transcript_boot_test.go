// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"os"
	"path/filepath"
	"strings"
)

func bootTranscripts() []transcript {
	return []transcript{
		{"a machine boots, talks on serial and shuts down", true, func(e *env) {
			e.file("a", 1<<20)
			e.running(object{"disks": []object{e.disk("a", "a")}, "vsock": object{"cid": 3, "socket": e.path("vsock")}})
			e.state("Running")
			e.exists(true, "serial", "vsock")
			l := e.attach()
			l.booted()
			l.types("xyz")
			l.shows("xyz")
			l.types("\n")
			l.shows("\r")
			e.put("vm.boot").fails(kindInternal, noBoot, already)
			e.put("vm.shutdown").done()
			l.closes()
			e.exists(false, "serial", "vsock")
			e.state("Created")
			e.put("vm.shutdown").fails(kindInternal, "The VM could not shutdown", "VM is not running")
			e.put("vm.boot").done()
			e.attach().booted()
			e.put("vm.delete").done()
			e.sequence("vmm starting", "vm booting", "vm booted", "vm shutdown", "vm booting", "vm booted", "vm shutdown", "vm deleted")
		}},
		{"the newest serial client kicks the old one out", true, func(e *env) {
			e.running()
			first := e.attach()
			first.booted()
			second := e.attach()
			first.closes()
			second.types("abc")
			second.shows("abc")
		}},
		{"a failed boot loses the disks, the vsock and the serial socket for good", true, func(e *env) {
			e.start("--no-shutdown")
			e.put("vm.create", e.config(object{
				"disks": []object{e.disk("missing", "a")}, "vsock": object{"cid": 3, "socket": e.path("vsock")},
			})).done()
			e.put("vm.boot").fails(kindInternal, noBoot, manager, "Cannot open disk path",
				"I/O error (path="+e.path("missing")+" op=open)", noFile)
			e.state("Created")
			e.exists(false, "serial", "vsock")
			if e.count("disks") != 0 {
				e.t.Errorf("disks are still configured")
			}
			// The second boot succeeds, without a disk and with a serial port nobody can reach.
			e.file("missing", 1<<20)
			e.put("vm.boot").done()
			e.exists(false, "serial")
			if tree := e.info().Tree; len(tree) == 0 || tree["a"].ID != "" {
				e.t.Errorf("device tree %v", tree)
			}
			e.sequence("vmm starting", "vm booting", "vm booting", "vm booted")
		}},
		{"a stale vsock socket fails the boot", true, func(e *env) {
			e.file("vsock", 0)
			e.start()
			e.put("vm.create", e.config(object{"vsock": object{"cid": 3, "socket": e.path("vsock")}})).done()
			e.put("vm.boot").fails(kindInternal, noBoot, manager, "Cannot create virtio-vsock backend",
				"Error binding to the host-side Unix socket", inUse)
		}},
		{"a missing kernel fails late and leaves half a machine", true, func(e *env) {
			e.start()
			e.must(os.Remove(e.path("kernel")))
			e.put("vm.create", e.config()).done()
			e.put("vm.boot").fails(kindInternal, noBoot, "Cannot open kernel file", noFile)
			e.state("Created")
			e.put("vm.boot").fails(kindInternal, noBoot, already)
			e.put("vm.shutdown").done()
			e.exists(false, "serial")
			e.must(tinyELF(e.path("kernel")))
			e.put("vm.boot").done()
		}},
		{"a firmware that cannot be loaded, a missing initramfs and a bad UUID fail the boot", true, func(e *env) {
			e.start()
			e.put("vm.create", e.config(object{"payload": object{"firmware": e.file("raw", 4096)}})).done()
			e.put("vm.boot").fails(kindInternal, noBoot, "Cannot load the kernel into memory",
				"Kernel Loader: failed to load bzImage kernel image: Kernel Loader: Invalid bzImage",
				"Kernel Loader: Invalid bzImage")
			e.put("vm.delete").done()
			e.put("vm.create", e.config(object{"payload": object{"kernel": e.path("kernel"), "initramfs": e.path("no")}})).done()
			e.put("vm.boot").fails(kindInternal, noBoot, "Cannot open initramfs file", noFile)
			e.put("vm.delete").done()
			e.put("vm.create", e.config(object{"platform": object{"uuid": "bad"}})).done()
			e.put("vm.boot").fails(kindInternal, noBoot, "Cannot configure system", "Platform specific error (x86_64)",
				"Error setting up SMBIOS table", "Failure to parse uuid: bad", "invalid length: found 3")
		}},
		{"an image that is locked fails the boot late", true, func(e *env) {
			e.file("a", 1<<20)
			e.start("--no-shutdown")
			e.put("vm.create", e.config(object{"disks": []object{e.disk("a", "a"), e.disk("a", "b")}})).done()
			e.put("vm.boot").fails(kindInternal, noBoot, "Error locking disk images: Another instance likely holds a lock",
				"Cannot lock images of all block devices", "Failed to get Write lock for disk image: "+e.path("a"),
				"The file is already locked")
			e.state("Created")
			e.put("vm.boot").fails(kindInternal, noBoot, already)
			e.put("vm.shutdown").done()
			e.put("vm.remove-device", object{"id": "b"}).done()
			e.put("vm.boot").done()
		}},
		{"two processes cannot write to one image", true, func(e *env) {
			e.file("a", 1<<20)
			e.running(object{"disks": []object{e.disk("a", "a")}})
			other := newEnv(e.t, e.s)
			e.must(tinyELF(other.path("kernel")))
			other.start()
			other.put("vm.create", other.config(object{"disks": []object{e.disk("a", "a")}})).done()
			other.put("vm.boot").fails(kindInternal, noBoot, "Error locking disk images: Another instance likely holds a lock",
				"Cannot lock images of all block devices", "Failed to get Write lock for disk image: "+e.path("a"),
				"The file is already locked")
			e.put("vm.delete").done()
			other.put("vm.shutdown").done()
			other.put("vm.boot").done()
		}},
		{"pausing twice and resuming a running machine are refused", true, func(e *env) {
			e.running()
			e.put("vm.resume").fails(kindInternal, "The VM could not resume", "Cannot resume VM",
				"Failed to resume migratable component", "Invalid transition: InvalidStateTransition(Running, Running)")
			e.put("vm.pause").done()
			e.state("Paused")
			e.put("vm.pause").fails(kindInternal, "The VM could not be paused", "Cannot pause VM",
				"Failed to pause migratable component", "Invalid transition: InvalidStateTransition(Paused, Paused)")
			e.put("vm.boot").fails(kindInternal, noBoot, already)
			e.put("vm.power-button").done()
			e.put("vm.resume").done()
			e.state("Running")
			e.put("vm.snapshot", object{"destination_url": "file:///nowhere"}).fails(kindInternal,
				"The VM could not be snapshotted", "Cannot snapshot VM", "Failed to snapshot migratable component",
				"Trying to snapshot while VM is running")
			e.put("vm.pause").done()
			e.put("vm.reboot").done()
			e.state("Running")
			e.sequence("vmm starting", "vm booting", "vm booted", "vm resuming", "vm pausing", "vm paused", "vm pausing",
				"vm resuming", "vm resumed", "vm snapshotting", "vm pausing", "vm paused", "vm rebooting", "vm rebooted")
		}},
		{"a resize of a running machine is checked", true, func(e *env) {
			e.running()
			resize := "The VM could not be resized"
			e.put("vm.resize", object{"desired_vcpus": 0}).fails(kindInternal, resize, "Error from CPU manager", "Requested zero vCPUs")
			e.put("vm.resize", object{"desired_vcpus": 9}).fails(kindInternal, resize, "Error from CPU manager",
				"Requested vCPUs exceed maximum")
			e.put("vm.resize", object{"desired_ram": 1 << 30}).fails(kindInternal, resize, "Memory manager error",
				"Not enough space in the hotplug RAM region")
			e.put("vm.resize", object{"desired_balloon": 1 << 20}).fails(kindInternal, resize, manager,
				"Missing virtio-balloon, can't proceed as expected")
			e.put("vm.resize", object{}).done()
			e.sequence("vmm starting", "vm booting", "vm booted", "vm resizing", "vm resizing", "vm resizing", "vm resizing",
				"vm resizing", "vm resized")
		}},
		{"a pty is made at create and again at reboot", true, func(e *env) {
			e.start("--no-shutdown")
			e.put("vm.create", e.config(object{"serial": object{"mode": "Pty"}})).done()
			before := e.ptyPath()
			e.put("vm.boot").done()
			// Opening a line someone else polls must not wait for the carrier.
			f, err := os.OpenFile(before, os.O_RDWR, 0)
			e.must(err)
			defer f.Close()
			b := make([]byte, len(tinyText))
			for got := 0; got < len(b); {
				n, err := f.Read(b[got:])
				e.must(err)
				got += n
			}
			if string(b) != tinyText {
				e.t.Errorf("pty showed %q", b)
			}
			f.Close()
			e.put("vm.reboot").done()
			if _, err := os.Stat(e.ptyPath()); err != nil {
				e.t.Error(err)
			}
			e.put("vm.shutdown").done()
			if _, err := os.Stat(e.ptyPath()); err == nil {
				e.t.Error("the reported pty still exists after shutdown")
			}
		}},
		{"serial output goes to a file", true, func(e *env) {
			e.running(object{"serial": object{"mode": "File", "file": e.path("out")}})
			e.until("the file shows the text", func() bool {
				b, _ := os.ReadFile(e.path("out"))
				return strings.Contains(string(b), tinyText)
			})
		}},
	}
}

func (e *env) ptyPath() string {
	e.t.Helper()
	serial, _ := e.info().Config["serial"].(map[string]any)
	path, _ := serial["file"].(string)
	if filepath.Dir(path) != "/dev/pts" {
		e.t.Fatalf("serial is %v", serial)
	}
	return path
}
