// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"fmt"
	"io"
	"os"

	"github.com/google/uuid"
)

// The states vm.info can show.
const (
	stateCreated = "Created"
	stateRunning = "Running"
	statePaused  = "Paused"
)

// slotsPerSegment is the number of PCI device numbers; 0 is the host bridge.
const slotsPerSegment = 32

// machine is a booted VM, or the half of one that a late failure leaves.
type machine struct {
	v     *vmm
	cfg   *VMConfig
	state string

	nodes   map[string]*node // the device tree
	slots   map[uint16]uint32
	counter int // of generated device names

	disks  map[string]*disk // what resize-disk knows
	serial serialPort
	guest  *guest

	heldVcpus bool // removed vCPUs the guest has not given back
	closed    bool
}

// node is one entry of the device tree.
type node struct {
	id, parent string
	children   []string
	bdf        string
	segment    uint16
	slot       int
	res        string // one resource as JSON, or empty
	kind       string // as in "Not allowed to remove this type of device from the VM"
	removable  bool
	pending    bool // removed by the API, not ejected by the guest
	held       io.Closer
	ejected    bool
}

// newMachine builds a machine out of the configuration, in the order of the real one, because the
// order decides what a failure leaves behind. Lists are taken out of the configuration while their
// devices are made: a failure loses them for good.
func (v *vmm) newMachine() (*machine, *chainError) {
	if err := v.validate(v.cfg); err != nil {
		return nil, err.under("Failed to validate config")
	}
	if p := v.cfg.Payload; p.Firmware != nil {
		p.Cmdline, p.Initramfs = nil, nil
	}
	m := &machine{
		v: v, cfg: v.cfg, state: stateCreated,
		nodes: map[string]*node{}, slots: map[uint16]uint32{}, disks: map[string]*disk{},
	}
	m.guest = newGuest(m)
	if err := m.build(); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *machine) build() *chainError {
	m.serial = openSerial(m)
	m.nodes["__ioapic"] = &node{id: "__ioapic"}
	if m.cfg.Serial.Mode != "Off" {
		m.nodes["__serial"] = &node{id: "__serial"}
	}
	if err := m.makeDevices(); err != nil {
		return err.under("Error from device manager")
	}
	if p := m.cfg.Payload.Initramfs; p != nil {
		f, err := os.Open(*p)
		if err != nil {
			return failed("Cannot open initramfs file", osText(err))
		}
		f.Close()
	}
	return nil
}

// boot is the late part: a failure here leaves the machine as it is.
func (m *machine) boot() *chainError {
	for _, d := range m.cfg.Disks {
		opened := m.disks[deref(d.ID)]
		if opened == nil {
			continue
		}
		if err := opened.lock(); err != nil {
			return err.under("Error locking disk images: Another instance likely holds a lock",
				"Cannot lock images of all block devices")
		}
	}
	if err := m.loadPayload(); err != nil {
		return err
	}
	if p := m.cfg.Platform; p != nil && p.UUID != nil {
		if _, err := uuid.Parse(*p.UUID); err != nil {
			return failed("Cannot configure system", "Platform specific error (x86_64)",
				"Error setting up SMBIOS table", "Failure to parse uuid: "+*p.UUID,
				fmt.Sprintf("invalid length: found %d", len(*p.UUID)))
		}
	}
	m.state = stateRunning
	m.guest.start()
	return nil
}

func (m *machine) loadPayload() *chainError {
	path, what := deref(m.cfg.Payload.Kernel), "Cannot open kernel file"
	if m.cfg.Payload.Firmware != nil {
		path, what = *m.cfg.Payload.Firmware, "Error manipulating firmware file"
	}
	f, err := os.Open(path)
	if err != nil {
		return failed(what, osText(err))
	}
	defer f.Close()
	if !m.v.script.CheckKernel {
		return nil
	}
	head := make([]byte, 0x206)
	n, _ := io.ReadFull(f, head)
	head = head[:n]
	if len(head) >= 4 && string(head[:4]) == "\x7fELF" || len(head) == 0x206 && string(head[0x202:]) == "HdrS" {
		return nil
	}
	return failed("Cannot load the kernel into memory",
		"Kernel Loader: failed to load bzImage kernel image: Kernel Loader: Invalid bzImage",
		"Kernel Loader: Invalid bzImage")
}

// close stops the guest at once and gives back everything the machine held, sockets included.
func (m *machine) close() {
	if m.closed {
		return
	}
	m.closed = true
	m.guest.stop()
	if m.serial != nil {
		m.serial.close()
	}
	for _, n := range m.nodes {
		if n.held != nil {
			n.held.Close()
		}
	}
}

// insert adds a node for a device that is not on the bus yet.
func (m *machine) insert(id, kind string, held io.Closer) *node {
	n := &node{id: id, kind: kind, held: held, removable: true}
	m.nodes[id] = n
	return n
}

// name gives a device without an id the next free generated one.
func (m *machine) name(c *PciDeviceCommonConfig, prefix string) string {
	if c.ID != nil {
		return *c.ID
	}
	for {
		id := fmt.Sprintf("%s%d", prefix, m.counter)
		m.counter++
		if _, taken := m.nodes[id]; !taken && !m.cfg.hasID(id) {
			c.ID = ptr(id)
			return id
		}
	}
}

// plug puts a device on the bus. A virtio device gets a PCI node as its parent.
func (m *machine) plug(n *node, c PciDeviceCommonConfig, virtio bool) *chainError {
	slot, err := m.takeSlot(c)
	if err != nil {
		return err
	}
	on := n
	if virtio {
		on = &node{id: "_virtio-pci-" + n.id, children: []string{n.id}}
		n.parent = on.id
		m.nodes[on.id] = on
	}
	on.segment, on.slot = c.PciSegment, slot
	on.bdf = fmt.Sprintf("%04x:00:%02x.0", c.PciSegment, slot)
	on.res = barOf(slot, n.kind == "block")
	return nil
}

// barOf makes up the 512 KiB BAR of a device: disks live below 4 GiB, the rest at the end of 46 bits.
func barOf(slot int, low bool) string {
	base, kind := uint64(70368744177664)-uint64(slot)*(8<<20), "Mmio64"
	if low {
		base, kind = 3892314112-uint64(slot)*(512<<10), "Mmio32"
	}
	return fmt.Sprintf(`{"PciBar":{"index":0,"base":%d,"size":524288,"type_":"%s","prefetchable":false}}`, base, kind)
}

func (m *machine) takeSlot(c PciDeviceCommonConfig) (int, *chainError) {
	used := m.slots[c.PciSegment] | 1
	want := -1
	if c.PciDeviceID != nil {
		want = int(*c.PciDeviceID)
		if used&(1<<want) != 0 {
			return 0, failed("Failed to find an available PCI device ID",
				fmt.Sprintf("Valid PCI device identifier but already used: %d", want))
		}
	}
	for i := 0; want < 0; i++ {
		if i == slotsPerSegment {
			return 0, failed("Failed to find an available PCI device ID",
				"Could not find an available device slot on the PCI bus")
		}
		if used&(1<<i) == 0 {
			want = i
		}
	}
	m.slots[c.PciSegment] = used | 1<<want
	return want, nil
}

// busNode returns the node that sits on the bus for a device.
func (m *machine) busNode(n *node) *node {
	if n.bdf != "" {
		return n
	}
	return m.nodes[n.parent]
}

// eject is the guest letting go of a removed device.
func (m *machine) eject(id string) bool {
	n := m.nodes[id]
	if m.closed || n == nil || !n.pending || n.ejected {
		return false
	}
	n.ejected = true
	on := m.busNode(n)
	delete(m.nodes, id)
	delete(m.nodes, on.id)
	m.slots[on.segment] &^= 1 << on.slot
	if n.held != nil {
		n.held.Close()
	}
	m.v.mon.emit("vm", "device-removed", "id", id, "bdf", on.bdf)
	return true
}
