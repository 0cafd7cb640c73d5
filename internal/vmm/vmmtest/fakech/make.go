// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// makeDevices creates all devices of the configuration and puts them on the bus in order.
func (m *machine) makeDevices() *chainError {
	bus := &busOrder{m: m}
	cfg := m.cfg
	if mode := cfg.Console.Mode; mode != "Off" {
		bus.add(m.fixed("__console", "console"), cfg.Console.PciDeviceCommonConfig)
	}
	if err := takeList(&cfg.Disks, bus, func(c *DiskConfig) (*node, PciDeviceCommonConfig, *chainError) {
		n, err := m.makeDisk(c, false)
		return n, c.PciDeviceCommonConfig, err
	}); err != nil {
		return err
	}
	if err := takeList(&cfg.Net, bus, func(c *NetConfig) (*node, PciDeviceCommonConfig, *chainError) {
		n, err := m.makeNet(c)
		return n, c.PciDeviceCommonConfig, err
	}); err != nil {
		return err
	}
	bus.add(m.fixed("__rng", "rng"), cfg.Rng.PciDeviceCommonConfig)
	if err := m.makeRare(bus); err != nil {
		return err
	}
	return bus.plugAll()
}

// makeRare creates the kinds of devices that few machines have.
func (m *machine) makeRare(bus *busOrder) *chainError {
	cfg := m.cfg
	for i := range cfg.GenericVhostUser {
		n, err := m.makeGenericVhostUser(&cfg.GenericVhostUser[i])
		if err != nil {
			return err
		}
		bus.add(n, cfg.GenericVhostUser[i].PciDeviceCommonConfig)
	}
	if err := takeList(&cfg.Fs, bus, func(c *FsConfig) (*node, PciDeviceCommonConfig, *chainError) {
		n, err := m.makeFs(c)
		return n, c.PciDeviceCommonConfig, err
	}); err != nil {
		return err
	}
	if err := takeList(&cfg.Pmem, bus, func(c *PmemConfig) (*node, PciDeviceCommonConfig, *chainError) {
		n, err := m.makePmem(c)
		return n, c.PciDeviceCommonConfig, err
	}); err != nil {
		return err
	}
	if vs := cfg.Vsock; vs != nil {
		cfg.Vsock = nil
		n, err := m.makeVsock(vs)
		if err != nil {
			return err
		}
		bus.add(n, vs.PciDeviceCommonConfig)
		cfg.Vsock = vs
	}
	if cfg.Balloon != nil {
		bus.add(m.fixed("__balloon", "balloon"), cfg.Balloon.PciDeviceCommonConfig)
	}
	if cfg.Watchdog {
		bus.add(m.fixed("__watchdog", "watchdog"), PciDeviceCommonConfig{})
	}
	if err := takeList(&cfg.Vdpa, bus, func(c *VdpaConfig) (*node, PciDeviceCommonConfig, *chainError) {
		n, err := m.makeVdpa(c)
		return n, c.PciDeviceCommonConfig, err
	}); err != nil {
		return err
	}
	if cfg.Rtc != nil {
		bus.add(m.fixed("__rtc", "rtc"), cfg.Rtc.PciDeviceCommonConfig)
	}
	return nil
}

// busOrder collects made devices: all are made before the first goes on the bus.
type busOrder struct {
	m     *machine
	nodes []*node
	where []PciDeviceCommonConfig
}

func (b *busOrder) add(n *node, c PciDeviceCommonConfig) {
	b.nodes = append(b.nodes, n)
	b.where = append(b.where, c)
}

func (b *busOrder) plugAll() *chainError {
	m := b.m
	// Devices that name their slot get it before the others choose.
	for pinned := range 2 {
		for i, n := range b.nodes {
			if (b.where[i].PciDeviceID == nil) == (pinned == 0) {
				continue
			}
			if err := m.plug(n, b.where[i], true); err != nil {
				return err
			}
		}
	}
	if err := takeList(&m.cfg.Devices, nil, func(c *DeviceConfig) (*node, PciDeviceCommonConfig, *chainError) {
		n, err := m.makeVFIO(c)
		return n, c.PciDeviceCommonConfig, err
	}); err != nil {
		return err
	}
	if err := takeList(&m.cfg.UserDevices, nil, func(c *UserDeviceConfig) (*node, PciDeviceCommonConfig, *chainError) {
		n, err := m.makeUserDevice(c)
		return n, c.PciDeviceCommonConfig, err
	}); err != nil {
		return err
	}
	if m.cfg.Pvpanic {
		n := m.insert("__pvpanic", "pvpanic", nil)
		if err := m.plug(n, PciDeviceCommonConfig{}, false); err != nil {
			return err
		}
		n.removable = false
		n.res = `{"PciBar":{"index":0,"base":3892314096,"size":2,"type_":"Mmio32","prefetchable":false}}`
	}
	return nil
}

// takeList makes the devices of one list, which is gone from the configuration until all of them are
// made; after a failure it stays gone.
func takeList[T any](list *[]T, bus *busOrder, mk func(*T) (*node, PciDeviceCommonConfig, *chainError)) *chainError {
	items := *list
	*list = nil
	for i := range items {
		n, common, err := mk(&items[i])
		if err != nil {
			return err
		}
		if bus != nil {
			bus.add(n, common)
		}
	}
	*list = items
	return nil
}

// fixed inserts one of the devices that every machine has at most once and that cannot be removed.
func (m *machine) fixed(id, kind string) *node {
	n := m.insert(id, kind, nil)
	n.removable = false
	return n
}

func (m *machine) makeDisk(c *DiskConfig, hot bool) (*node, *chainError) {
	id := m.name(&c.PciDeviceCommonConfig, "_disk")
	if c.VhostUser {
		conn, err := m.vhostUser(deref(c.VhostSocket), "Cannot create vhost-user-blk device")
		if err != nil {
			return nil, err
		}
		return m.insert(id, "block", conn), nil
	}
	d, err := openDisk(c, m.v.dialect)
	if err != nil {
		return nil, err
	}
	if hot {
		if err := d.lock(); err != nil {
			_ = d.Close()
			return nil, err.under("Cannot lock images of all block devices")
		}
	}
	m.disks[id] = d
	return m.insert(id, "block", d), nil
}

func (m *machine) makeNet(c *NetConfig) (*node, *chainError) {
	id := m.name(&c.PciDeviceCommonConfig, "_net")
	var held io.Closer
	if c.VhostUser && c.VhostMode == "Client" {
		conn, err := m.vhostUser(deref(c.VhostSocket), "Cannot create vhost-user-net device")
		if err != nil {
			return nil, err
		}
		held = conn
	}
	if c.Tap != nil && m.v.script.CheckTaps {
		if _, err := os.Stat(filepath.Join("/sys/class/net", *c.Tap)); err != nil {
			return nil, failed("Cannot create virtio-net device", "Failed to open taps", osText(err))
		}
	}
	for _, fd := range c.Fds {
		if !m.v.script.CheckTapFDs {
			break
		}
		if err := tapName(int(fd)); err != nil {
			return nil, failed("Cannot create virtio-net device", "Using existing tap",
				"Ioctl failed (2147767506)", osText(err))
		}
	}
	if len(c.Fds) > 0 {
		// The device has its own, which it gives back when the guest lets go of it.
		held = dupAll(c.Fds)
	}
	return m.insert(id, "net", held), nil
}

// descriptors are closed together.
type descriptors []int

func dupAll(fds []int32) descriptors {
	var own descriptors
	for _, fd := range fds {
		if n, err := dupFD(int(fd)); err == nil {
			own = append(own, n)
		}
	}
	return own
}

// Close closes them.
func (d descriptors) Close() error {
	for _, fd := range d {
		_ = syscall.Close(fd)
	}
	return nil
}

func (m *machine) makeFs(c *FsConfig) (*node, *chainError) {
	id := m.name(&c.PciDeviceCommonConfig, "_fs")
	conn, err := m.vhostUser(c.Socket, "Cannot create virtio-fs device")
	if err != nil {
		return nil, err
	}
	return m.insert(id, "fs", conn), nil
}

func (m *machine) makeGenericVhostUser(c *GenericVhostUserConfig) (*node, *chainError) {
	id := m.name(&c.PciDeviceCommonConfig, "_generic_vhost_user")
	conn, err := m.vhostUser(c.Socket, "Cannot create generic vhost-user device")
	if err != nil {
		return nil, err
	}
	return m.insert(id, "generic", conn), nil
}

func (m *machine) makePmem(c *PmemConfig) (*node, *chainError) {
	id := m.name(&c.PciDeviceCommonConfig, "_pmem")
	f, err := os.OpenFile(c.File, os.O_RDWR, 0)
	if err != nil {
		return nil, failed("Cannot open persistent memory file", osText(err))
	}
	return m.insert(id, "pmem", f), nil
}

func (m *machine) makeVdpa(c *VdpaConfig) (*node, *chainError) {
	id := m.name(&c.PciDeviceCommonConfig, "_vdpa")
	f, err := os.OpenFile(c.Path, os.O_RDWR, 0)
	if err != nil {
		return nil, failed("Cannot create vdpa device", osText(err))
	}
	return m.insert(id, "vdpa", f), nil
}

// makeVFIO puts the device on the bus itself, as VFIO devices have no virtio half.
func (m *machine) makeVFIO(c *DeviceConfig) (*node, *chainError) {
	id := m.name(&c.PciDeviceCommonConfig, "_vfio")
	if err := m.vfioReady(deref(c.Path)); err != nil {
		text := osText(err)
		return nil, failed("Cannot create a VFIO device", "failed to open /dev/vfio/vfio container: "+text, text)
	}
	n := m.insert(id, "vfio", nil)
	return n, m.plug(n, c.PciDeviceCommonConfig, false)
}

// vfioReady looks at what the real one would open.
func (m *machine) vfioReady(path string) error {
	if !m.v.script.AllowVFIO {
		f, err := os.OpenFile("/dev/vfio/vfio", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		f.Close()
	}
	_, err := os.Stat(path)
	return err
}

func (m *machine) makeUserDevice(c *UserDeviceConfig) (*node, *chainError) {
	id := m.name(&c.PciDeviceCommonConfig, "_vfio_user")
	conn, err := net.Dial("unix", c.Socket)
	if err != nil {
		return nil, failed("Failed to create vfio-user client", osText(err))
	}
	n := m.insert(id, "vfio-user", conn)
	return n, m.plug(n, c.PciDeviceCommonConfig, false)
}

// vhostUser connects to a backend. A missing socket is waited for with the VMM blocked; a backend that
// accepts and never answers blocks it for ever.
func (m *machine) vhostUser(path, what string) (net.Conn, *chainError) {
	wait := time.Duration(m.v.script.VhostUserTimeoutMS) * time.Millisecond
	if wait == 0 {
		wait = time.Minute
	}
	deadline := time.Now().Add(wait)
	for {
		conn, err := net.Dial("unix", path)
		if err == nil {
			if m.v.script.VhostUserHandshake {
				vhostFeatures(conn)
			}
			return conn, nil
		}
		if time.Now().After(deadline) {
			return nil, failed(what, "Connection to socket failed", "vhost-user: can't connect to peer: "+osText(err))
		}
		time.Sleep(min(wait/20+time.Millisecond, 100*time.Millisecond))
	}
}

// vhostFeatures sends GET_FEATURES (request 1, version 1, no payload) and waits for the reply.
func vhostFeatures(conn net.Conn) {
	_, _ = conn.Write([]byte{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0})
	_, _ = io.ReadFull(conn, make([]byte, 20))
}
