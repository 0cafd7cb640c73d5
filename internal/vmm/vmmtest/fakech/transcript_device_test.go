// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

const (
	noRemove = "The device could not be removed from the VM"
	noResize = "The disk could not be resized"
	unknown  = "Failed to find device corresponding to the given identifier: "
)

func deviceTranscripts() []transcript {
	return []transcript{
		{"the device tree shows each virtio device and its PCI half in slot order", true, func(e *env) {
			e.file("a", 1<<20)
			e.running(object{
				"disks": []object{{"path": e.path("a"), "image_type": "Raw"}},
				"vsock": object{"cid": 3, "socket": e.path("vsock")}, "console": object{"mode": "Null"},
				"balloon": object{"size": 0}, "watchdog": true, "pvpanic": true,
			})
			tree := e.info().Tree
			for id, bdf := range map[string]string{
				"_virtio-pci-__console": "0000:00:01.0", "_virtio-pci-_disk0": "0000:00:02.0",
				"_virtio-pci-__rng": "0000:00:03.0", "_virtio-pci-_vsock1": "0000:00:04.0",
				"_virtio-pci-__balloon": "0000:00:05.0", "_virtio-pci-__watchdog": "0000:00:06.0",
				"__pvpanic": "0000:00:07.0", "_disk0": "", "__serial": "", "__ioapic": "",
			} {
				if got, ok := tree[id]; !ok || got.BDF != bdf || got.ID != id {
					e.t.Errorf("%s is %+v, want bdf %q", id, got, bdf)
				}
			}
			if d := tree["_disk0"]; d.Parent != "_virtio-pci-_disk0" || tree[d.Parent].Children[0] != "_disk0" {
				e.t.Errorf("disk %+v", d)
			}
			if len(tree) != 15 {
				e.t.Errorf("%d entries in %v", len(tree), tree)
			}
			var counters map[string]map[string]uint64
			e.decode(e.get("vm.counters").is(200, ""), &counters)
			if c := counters["_disk0"]; c["read_latency_min"] != 1<<64-1 || len(c) != 10 || len(counters) != 1 {
				e.t.Errorf("counters %v", counters)
			}
		}},
		{"mistakes of add-disk are told apart", true, func(e *env) {
			e.file("a", 1<<20)
			e.file("c", 1<<20)
			e.running(object{"disks": []object{e.disk("a", "a")}})
			add := func(kind errKind, d object, texts ...string) {
				e.t.Helper()
				e.put("vm.add-disk", d).fails(kind, append([]string{noDisk}, texts...)...)
			}
			invalid := "Failed to validate config"
			add(kindConflict, e.disk("c", "a"), invalid, "Identifier a is not unique")
			add(kindInvalid, e.disk("c", "__x"), invalid, "Identifier __x is not invalid")
			add(kindInvalid, e.disk("c", "c", object{"num_queues": 4}), invalid, "Queue count (4) must not exceed boot vCPUs (1)")
			add(kindInvalid, e.disk("c", "c", object{"serial": strings.Repeat("x", 21)}), invalid,
				"Block device serial length (21) exceeds maximum allowed length (20)")
			add(kindInvalid, e.disk("c", "c", object{"queue_size": 100}), invalid,
				"Queue size must be a power of 2 no greater than 32768: 100")
			add(kindInvalid, e.disk("c", "c", object{"queue_size": 2}), invalid, "Block queue size must be greater than 2: 2")
			add(kindInvalid, e.disk("c", "c", object{"pci_segment": 1}), invalid, "Invalid PCI segment id: 1")
			add(kindInvalid, e.disk("c", "c", object{"pci_device_id": 32}), invalid,
				"Given PCI device ID (32) is out of the supported range of 0..32")
			add(kindInvalid, e.disk("c", "c", object{"pci_device_id": 0}), invalid, "Given PCI device ID (0) is reserved")
			add(kindInvalid, object{"id": "c", "vhost_user": true, "vhost_socket": "s"}, invalid,
				"Using vhost-user requires using shared memory or huge pages")
			add(kindInternal, e.disk("a", "c"), manager, "Cannot lock images of all block devices",
				"Failed to get Write lock for disk image: "+e.path("a"), "The file is already locked")
			add(kindInternal, e.disk("c", "c", object{"image_type": "Qcow2"}), manager,
				"Disk image type does not match expected type: specified = qcow2, detected = raw")
			add(kindInternal, e.disk("no", "c"), manager, "Cannot open disk path",
				"I/O error (path="+e.path("no")+" op=open)", noFile)
			add(kindInternal, object{"path": e.dir, "id": "c"}, manager, "Cannot open disk path",
				"I/O error (path="+e.dir+" op=open)", "Is a directory (os error 21)")
			add(kindInternal, object{"id": "c"}, manager, "No disk path was specified when one was expected")
			e.put("vm.add-disk", e.disk("c", "c")).is(200, `{"id":"c","bdf":"0000:00:03.0"}`)
		}},
		{"an image is shared by readers and nobody else", true, func(e *env) {
			e.file("a", 1<<20)
			read := object{"readonly": true}
			e.running(object{"disks": []object{e.disk("a", "x", read), e.disk("a", "y", read)}})
			e.put("vm.add-disk", e.disk("a", "z")).fails(kindInternal, noDisk, manager,
				"Cannot lock images of all block devices", "Failed to get Write lock for disk image: "+e.path("a"),
				"The file is already locked")
			e.put("vm.resize-disk", object{"id": "x", "desired_size": 512}).fails(kindInternal, noResize, manager,
				"Disk resize error", "Disk resize failed", "I/O error", "Resize failed", "Invalid argument (os error 22)")
		}},
		{"removal waits for the guest and holds id and lock until a reboot", true, func(e *env) {
			e.file("a", 1<<20)
			e.running(object{"disks": []object{e.disk("a", "a")}})
			e.put("vm.remove-device", object{"id": "a"}).done()
			i := e.info()
			if _, held := i.Tree["a"]; !held || len(i.Config["disks"].([]any)) != 0 {
				e.t.Errorf("tree %v, disks %v", i.Tree, i.Config["disks"])
			}
			again := e.put("vm.remove-device", object{"id": "a"})
			if e.s.d == dialect53 {
				again.fails(kindNoDevice, noRemove, manager, unknown+"a")
			} else {
				again.done()
			}
			e.put("vm.resize-disk", object{"id": "a", "desired_size": 512}).fails(kindNoDevice, noResize, manager, unknown+"a")
			e.put("vm.add-disk", e.disk("a", "a")).fails(kindInternal, noDisk, manager, "Invalid identifier as it is not unique: a")
			e.put("vm.add-disk", e.disk("a", "b")).fails(kindInternal, noDisk, manager,
				"Cannot lock images of all block devices", "Failed to get Write lock for disk image: "+e.path("a"),
				"The file is already locked")
			e.put("vm.reboot").done()
			if _, held := e.info().Tree["a"]; held {
				e.t.Error("device is still there after the reboot")
			}
			e.put("vm.add-disk", e.disk("a", "a")).is(200, `{"id":"a","bdf":"0000:00:02.0"}`)
			e.sequence("vmm starting", "vm booting", "vm booted", "vm rebooting", "vm rebooted")
		}},
		{"what cannot be removed is named", true, func(e *env) {
			e.running(object{"balloon": object{"size": 0}, "watchdog": true})
			remove := func(id string) answer { return e.put("vm.remove-device", object{"id": id}) }
			remove("zz").fails(kindNoDevice, noRemove, manager, unknown+"zz")
			for _, kind := range []string{"rng", "balloon", "watchdog"} {
				remove("__"+kind).fails(kindInternal, noRemove, manager, "Not allowed to remove this type of device from the VM: "+kind)
			}
			remove("__serial").fails(kindInternal, noRemove, manager, "Could not find the node in the device tree")
		}},
		{"thirty-one slots are all, and the device too many stays behind", true, func(e *env) {
			e.running()
			for i := range 30 {
				name := fmt.Sprintf("s%d", i)
				e.file(name, 4096)
				e.put("vm.add-disk", e.disk(name, name)).is(200, fmt.Sprintf(`{"id":"%s","bdf":"0000:00:%02x.0"}`, name, i+2))
			}
			e.file("full", 4096)
			e.put("vm.add-disk", e.disk("full", "full")).fails(kindInternal, noDisk, manager,
				"Failed to find an available PCI device ID", "Could not find an available device slot on the PCI bus")
			e.put("vm.add-disk", e.disk("full", "full")).fails(kindInternal, noDisk, manager,
				"Invalid identifier as it is not unique: full")
			e.put("vm.add-disk", e.disk("full", "other")).fails(kindInternal, noDisk, manager,
				"Cannot lock images of all block devices", "Failed to get Write lock for disk image: "+e.path("full"),
				"The file is already locked")
		}},
		{"resize-disk cuts a raw file without a question", true, func(e *env) {
			e.file("a", 1<<20)
			e.running(object{"disks": []object{e.disk("a", "a")}})
			resize := func(id string, size int) answer {
				return e.put("vm.resize-disk", object{"id": id, "desired_size": size})
			}
			resize("a", 1000).fails(kindInternal, noResize, manager, "Disk resize error", "Disk image size is not a multiple of 512")
			resize("zz", 512).fails(kindNoDevice, noResize, manager, unknown+"zz")
			for _, size := range []int{2 << 20, 4096} {
				resize("a", size).done()
				if st, err := os.Stat(e.path("a")); err != nil || st.Size() != int64(size) {
					e.t.Errorf("size %v (%v), want %d", st, err, size)
				}
			}
		}},
		{"one vsock is all", true, func(e *env) {
			e.running(object{"vsock": object{"cid": 3, "socket": e.path("vsock")}})
			e.put("vm.add-vsock", object{"cid": 4, "socket": e.path("other")}).fails(kindInternal,
				"The vsock device could not be added to the VM", "Too many virtio-vsock devices")
		}},
		{"a descriptor that is no tap fails the boot and the NIC is lost", true, func(e *env) {
			e.start()
			e.put("vm.create", e.config()).done()
			r, w, err := os.Pipe()
			e.must(err)
			defer r.Close()
			defer w.Close()
			e.sendNet(object{"id": "n"}, r).done()
			e.put("vm.boot").fails(kindInternal, noBoot, manager, "Cannot create virtio-net device", "Using existing tap",
				"Ioctl failed (2147767506)", "Inappropriate ioctl for device (os error 25)")
			if e.count("net") != 0 {
				e.t.Error("the NIC is still configured")
			}
		}},
		{"descriptors of add-net are counted", false, func(e *env) {
			e.start()
			e.put("vm.create", e.config()).done()
			r, w, err := os.Pipe()
			e.must(err)
			defer r.Close()
			defer w.Close()
			e.sendNet(object{"id": "n", "num_queues": 4}, r).fails(kindInvalid,
				"The network device could not be added to the VM", "Failed to validate config",
				"Number of queues (4) to virtio_net does not match the number of FDs (2)")
			e.sendNet(object{"id": "n", "fds": []int{7}}, r).done()
			net := e.info().Config["net"].([]any)[0].(object)
			if fds, _ := net["fds"].([]any); len(fds) != 1 || fds[0].(float64) == 7 {
				e.t.Errorf("fds %v", net["fds"])
			}
		}},
	}
}

// sendNet sends vm.add-net with a descriptor.
func (e *env) sendNet(body object, files ...*os.File) answer {
	e.t.Helper()
	return e.sendFDs("vm.add-net", body, files...)
}

func (e *env) sendFDs(endpoint string, body object, files ...*os.File) answer {
	e.t.Helper()
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	text := string(mustJSON(e.t, body))
	head := fmt.Sprintf("PUT /api/v1/%s HTTP/1.1\r\nContent-Length: %d\r\n\r\n", endpoint, len(text))
	c := e.dial().(*net.UnixConn)
	if _, _, err := c.WriteMsgUnix([]byte(head+text), syscall.UnixRights(fds...), nil); err != nil {
		e.t.Fatal(err)
	}
	return e.read(endpoint, bufio.NewReader(c))
}
