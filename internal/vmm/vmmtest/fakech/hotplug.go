// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"encoding/json"
	"fmt"
	"slices"
	"syscall"
)

// adder is how one kind of device enters the configuration and a running machine.
type adder struct {
	common *PciDeviceCommonConfig
	single func(*VMConfig) bool // true: there is one already
	put    func(*VMConfig)
	make   func(*machine) (*node, *chainError)
	self   bool // make puts it on the bus itself
}

// addCall adapts an adder of one kind to an API call.
func addCall[T any](build func(*T) adder) func(*vmm, *request) ([]byte, *chainError, error) {
	return func(v *vmm, r *request) ([]byte, *chainError, error) {
		var cfg T
		if err := decodeJSON(v.dialect, r.body, &cfg); err != nil {
			return nil, nil, err
		}
		var body []byte
		var failure *chainError
		v.do(func() { body, failure = v.add(build(&cfg)) })
		return body, failure, nil
	}
}

// addNetCall also takes the descriptors that came with the request. Numbers in JSON mean nothing. The
// descriptors of a refused call are never closed, as in the real one.
func addNetCall(build func(*NetConfig) adder) func(*vmm, *request) ([]byte, *chainError, error) {
	return func(v *vmm, r *request) ([]byte, *chainError, error) {
		var cfg NetConfig
		if err := decodeJSON(v.dialect, r.body, &cfg); err != nil {
			return nil, nil, err
		}
		cfg.Fds = nil
		for _, fd := range r.fds {
			own, err := dupFD(fd)
			if err != nil {
				return nil, nil, err
			}
			cfg.Fds = append(cfg.Fds, int32(own))
		}
		var body []byte
		var failure *chainError
		v.do(func() { body, failure = v.add(build(&cfg)) })
		return body, failure, nil
	}
}

// add checks the configuration with the device in it, then plugs it into the machine, or just stores
// it when nothing is booted.
func (v *vmm) add(a adder) ([]byte, *chainError) {
	if v.cfg == nil {
		return nil, errNotCreated()
	}
	if a.single != nil && a.single(v.cfg) {
		return nil, failed("Too many virtio-vsock devices")
	}
	trial := *v.cfg
	a.put(&trial)
	if err := v.validate(&trial); err != nil {
		return nil, err.under("Failed to validate config")
	}
	if v.vm == nil {
		a.put(v.cfg)
		return nil, nil
	}
	v.busy(v.script.AddDelayMS)
	n, err := v.vm.hotplug(a)
	if err != nil {
		return nil, err.under("Error from device manager")
	}
	a.put(v.cfg)
	v.vm.guest.sees(n.id)
	b, jerr := json.Marshal(struct {
		ID  string `json:"id"`
		BDF string `json:"bdf"`
	}{n.id, v.vm.busNode(n).bdf})
	if jerr != nil {
		return nil, failed(jerr.Error())
	}
	return b, nil
}

func (m *machine) hotplug(a adder) (*node, *chainError) {
	if id := a.common.ID; id != nil {
		if _, taken := m.nodes[*id]; taken {
			return nil, failed("Invalid identifier as it is not unique: " + *id)
		}
	}
	n, err := a.make(m)
	if err != nil {
		return nil, err
	}
	if a.self {
		return n, nil
	}
	// Without a free slot the device stays behind, in the tree and with its lock.
	return n, m.plug(n, *a.common, true)
}

func addDisk(c *DiskConfig) adder {
	return adder{
		common: &c.PciDeviceCommonConfig,
		put:    func(cfg *VMConfig) { cfg.Disks = append(slices.Clip(cfg.Disks), *c) },
		make:   func(m *machine) (*node, *chainError) { return m.makeDisk(c, true) },
	}
}

func addNet(c *NetConfig) adder {
	return adder{
		common: &c.PciDeviceCommonConfig,
		put:    func(cfg *VMConfig) { cfg.Net = append(slices.Clip(cfg.Net), *c) },
		make:   func(m *machine) (*node, *chainError) { return m.makeNet(c) },
	}
}

func addVFIO(c *DeviceConfig) adder {
	return adder{
		common: &c.PciDeviceCommonConfig, self: true,
		put:  func(cfg *VMConfig) { cfg.Devices = append(slices.Clip(cfg.Devices), *c) },
		make: func(m *machine) (*node, *chainError) { return m.makeVFIO(c) },
	}
}

func addUserDevice(c *UserDeviceConfig) adder {
	return adder{
		common: &c.PciDeviceCommonConfig, self: true,
		put:  func(cfg *VMConfig) { cfg.UserDevices = append(slices.Clip(cfg.UserDevices), *c) },
		make: func(m *machine) (*node, *chainError) { return m.makeUserDevice(c) },
	}
}

func addFs(c *FsConfig) adder {
	return adder{
		common: &c.PciDeviceCommonConfig,
		put:    func(cfg *VMConfig) { cfg.Fs = append(slices.Clip(cfg.Fs), *c) },
		make:   func(m *machine) (*node, *chainError) { return m.makeFs(c) },
	}
}

func addGenericVhostUser(c *GenericVhostUserConfig) adder {
	return adder{
		common: &c.PciDeviceCommonConfig,
		put:    func(cfg *VMConfig) { cfg.GenericVhostUser = append(slices.Clip(cfg.GenericVhostUser), *c) },
		make:   func(m *machine) (*node, *chainError) { return m.makeGenericVhostUser(c) },
	}
}

func addPmem(c *PmemConfig) adder {
	return adder{
		common: &c.PciDeviceCommonConfig,
		put:    func(cfg *VMConfig) { cfg.Pmem = append(slices.Clip(cfg.Pmem), *c) },
		make:   func(m *machine) (*node, *chainError) { return m.makePmem(c) },
	}
}

func addVdpa(c *VdpaConfig) adder {
	return adder{
		common: &c.PciDeviceCommonConfig,
		put:    func(cfg *VMConfig) { cfg.Vdpa = append(slices.Clip(cfg.Vdpa), *c) },
		make:   func(m *machine) (*node, *chainError) { return m.makeVdpa(c) },
	}
}

func addVsock(c *VsockConfig) adder {
	return adder{
		common: &c.PciDeviceCommonConfig,
		single: func(cfg *VMConfig) bool { return cfg.Vsock != nil },
		put:    func(cfg *VMConfig) { cfg.Vsock = c },
		make:   func(m *machine) (*node, *chainError) { return m.makeVsock(c) },
	}
}

// idRequest is the body of vm.remove-device.
type idRequest struct {
	ID string `ch:"id,req"`
}

// removeDevice takes a device out of the configuration at once; out of a running machine only the guest
// takes it.
func (v *vmm) removeDevice(r *idRequest) *chainError {
	if v.vm == nil {
		if v.cfg == nil {
			return errNotCreated()
		}
		if !v.cfg.remove(r.ID) {
			return failedAs(kindNoDevice, fmt.Sprintf("No device with id %q to remove", r.ID))
		}
		return nil
	}
	m := v.vm
	n := m.nodes[r.ID]
	if n == nil {
		return errUnknownDevice(r.ID)
	}
	if n.pending && v.dialect != dialect53 {
		m.guest.removal(r.ID) // v53 alone refuses a second request, and asks nobody
		return nil
	}
	delete(m.disks, r.ID)
	if m.busNode(n) == nil {
		return failed("Error from device manager", "Could not find the node in the device tree")
	}
	if n.kind != "" && !n.removable {
		return failed("Error from device manager", "Not allowed to remove this type of device from the VM: "+n.kind)
	}
	if !v.cfg.remove(r.ID) {
		return errUnknownDevice(r.ID)
	}
	n.pending = true
	m.guest.removal(r.ID)
	return nil
}

// hasID reports whether any device of the configuration has the id.
func (c *VMConfig) hasID(id string) bool {
	trial := *c
	return trial.drop(id, nil)
}

// remove takes the device with the id out, and reports whether there was one. The descriptors of a NIC
// are closed.
func (c *VMConfig) remove(id string) bool {
	return c.drop(id, func(n NetConfig) { n.closeFDs() })
}

func (c *VMConfig) drop(id string, onNet func(NetConfig)) bool {
	found := false
	found = dropFrom(&c.Disks, id, func(d *DiskConfig) *string { return d.ID }, nil) || found
	found = dropFrom(&c.Net, id, func(d *NetConfig) *string { return d.ID }, onNet) || found
	found = dropFrom(&c.Devices, id, func(d *DeviceConfig) *string { return d.ID }, nil) || found
	found = dropFrom(&c.UserDevices, id, func(d *UserDeviceConfig) *string { return d.ID }, nil) || found
	found = dropFrom(&c.Fs, id, func(d *FsConfig) *string { return d.ID }, nil) || found
	found = dropFrom(&c.GenericVhostUser, id, func(d *GenericVhostUserConfig) *string { return d.ID }, nil) || found
	found = dropFrom(&c.Pmem, id, func(d *PmemConfig) *string { return d.ID }, nil) || found
	found = dropFrom(&c.Vdpa, id, func(d *VdpaConfig) *string { return d.ID }, nil) || found
	if c.Vsock != nil && c.Vsock.ID != nil && *c.Vsock.ID == id {
		c.Vsock, found = nil, true
	}
	return found
}

func dropFrom[T any](list *[]T, id string, idOf func(*T) *string, gone func(T)) bool {
	for i := range *list {
		if got := idOf(&(*list)[i]); got == nil || *got != id {
			continue
		}
		if gone != nil {
			gone((*list)[i])
		}
		// The list may be shared with a trial configuration: it is copied, and stays empty rather than nil.
		*list = append(append([]T{}, (*list)[:i]...), (*list)[i+1:]...)
		return true
	}
	return false
}

func (n NetConfig) closeFDs() {
	for _, fd := range n.Fds {
		_ = syscall.Close(int(fd))
	}
}
