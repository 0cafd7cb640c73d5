// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// has reports whether a living guest has a device.
func (h *host) has(machineID, device string) bool {
	g := h.living(machineID)
	return g != nil && (g.disk(device) >= 0 || g.nic(device) >= 0)
}

// violated notes what must never happen, for the end of the test. The caller holds the lock.
func (h *host) violated(what string) { h.violations = append(h.violations, what) }

func (g *guest) disk(id string) int {
	return slices.IndexFunc(g.cfg.Disks, func(d vmm.Disk) bool { return d.ID == id })
}

func (g *guest) nic(id string) int {
	return slices.IndexFunc(g.cfg.NICs, func(n vmm.NIC) bool { return n.ID == id })
}

func (g *guest) setBytes(id string, n int64) {
	if g.bytes == nil {
		g.bytes = map[string]int64{}
	}
	g.bytes[id] = n
}

// drop takes a device out of the guest.
func (h *host) drop(g *guest, id string) {
	g.cfg.Disks = slices.DeleteFunc(slices.Clone(g.cfg.Disks), func(d vmm.Disk) bool { return d.ID == id })
	g.cfg.NICs = slices.DeleteFunc(slices.Clone(g.cfg.NICs), func(n vmm.NIC) bool { return n.ID == id })
	delete(g.leaving, id)
	h.tell(g, vmm.EventDeviceRemoved)
}

// reset reboots a guest in its VMM, which makes it let go of what it was asked to.
func (h *host) reset(g *guest) {
	for id := range g.leaving {
		h.drop(g, id)
	}
	h.tell(g, vmm.EventGuestReset)
}

func (v *vm) room(g *guest) error {
	if v.h.slots > 0 && len(g.cfg.Disks)+len(g.cfg.NICs) >= v.h.slots {
		return machine.Errorf(machine.Exhausted, "all %d slots are taken", v.h.slots)
	}
	return nil
}

func (v *vm) AttachDisk(_ context.Context, d vmm.Disk) error {
	return v.call("attach", func(g *guest) error {
		switch {
		case g.leaving[d.ID]:
			return machine.Errorf(machine.FailedPrecondition, "%s is still leaving", d.ID)
		case g.disk(d.ID) >= 0:
			return nil
		}
		if err := v.room(g); err != nil {
			return err
		}
		g.cfg.Disks = append(g.cfg.Disks, d)
		g.setBytes(d.ID, v.h.sizes[d.Path])
		return nil
	})
}

func (v *vm) AttachNIC(_ context.Context, n vmm.NIC) error {
	return v.call("attach", func(g *guest) error {
		switch {
		case g.leaving[n.ID]:
			return machine.Errorf(machine.FailedPrecondition, "%s is still leaving", n.ID)
		case g.nic(n.ID) >= 0:
			return nil
		}
		if err := v.room(g); err != nil {
			return err
		}
		g.cfg.NICs = append(g.cfg.NICs, n)
		return nil
	})
}

func (v *vm) DetachDisk(_ context.Context, id string) error { return v.detach(id) }
func (v *vm) DetachNIC(_ context.Context, id string) error  { return v.detach(id) }

func (v *vm) detach(id string) error {
	return v.call("detach", func(g *guest) error {
		if g.disk(id) < 0 && g.nic(id) < 0 {
			return nil
		}
		how := atOnce
		if v.h.lets != nil {
			how = v.h.lets(id)
		}
		if how == atOnce {
			v.h.drop(g, id)
			return nil
		}
		if g.leaving == nil {
			g.leaving = map[string]bool{}
		}
		if g.leaving[id] = true; how == late {
			time.AfterFunc(3*time.Millisecond, func() {
				v.h.mu.Lock()
				defer v.h.mu.Unlock()
				if g.leaving[id] {
					v.h.drop(g, id)
				}
			})
		}
		return nil
	})
}

func (v *vm) ResizeDisk(_ context.Context, id string, size int64) error {
	return v.call("resize", func(g *guest) error {
		if g.disk(id) < 0 {
			return machine.Errorf(machine.NotFound, "there is no %s", id)
		}
		path := g.cfg.Disks[g.disk(id)].Path
		v.h.sizes[path] = max(v.h.sizes[path], size)
		g.setBytes(id, size)
		return nil
	})
}

// volumes are local ones, and those of the driver "far".
type volumes struct{ h *host }

func (p volumes) Name() string { return "imaginary" }
func (p volumes) Supports(v machine.Volume) bool {
	return v.LocalDisk != nil || v.Connection != nil && v.Connection.Driver == "far"
}
func (p volumes) Validate(string, machine.Volume) error { return nil }

func (p volumes) Identity(v machine.Volume) string {
	if v.Connection != nil {
		return "far " + v.Connection.Handle
	}
	if v.LocalDisk.Image != nil {
		return "near " + *v.LocalDisk.Image
	}
	return "near"
}

func (p volumes) Prepare(_ context.Context, req volume.Request) (volume.Prepared, error) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if err := cmp.Or(p.h.failing["volume"], p.h.failing["volume "+req.Volume.Name]); err != nil {
		return volume.Prepared{}, err
	}
	key := req.MachineID + "/" + req.Volume.Name
	path := req.Dir + "/disk.raw"
	if c := req.Volume.Connection; c != nil {
		path = "/far/" + c.Handle
	} else if p.h.volumes[key]++; p.h.data[key] == 0 {
		if req.Made {
			return volume.Prepared{}, machine.Errorf(machine.FailedPrecondition, "the data of %s are missing", key)
		}
		p.h.made++
		p.h.data[key] = p.h.made
	}
	p.h.held[key] = true
	if p.h.sizes[path] = max(p.h.sizes[path], 1<<20); !p.h.fixed {
		p.h.sizes[path] = max(p.h.sizes[path], volume.WantedBytes(req.Volume))
	}
	return volume.Prepared{Handle: "vol://" + req.Volume.Name, Path: path, SizeBytes: p.h.sizes[path]}, nil
}

func (p volumes) Release(_ context.Context, req volume.Request) error {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if p.h.has(req.MachineID, vmm.DeviceID("disk", req.Volume.Name)) {
		p.h.violated("volume " + req.Volume.Name + " released under a guest that has it")
	}
	if err := p.h.failing["volume.release"]; err != nil {
		return err
	}
	delete(p.h.held, req.MachineID+"/"+req.Volume.Name)
	return nil
}

func (p volumes) Delete(_ context.Context, req volume.Request) error {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if p.h.has(req.MachineID, vmm.DeviceID("disk", req.Volume.Name)) {
		p.h.violated("volume " + req.Volume.Name + " deleted under a guest that has it")
	}
	if err := cmp.Or(p.h.failing["volume.delete"], p.h.failing["volume.delete "+req.Volume.Name]); err != nil {
		return err
	}
	key := req.MachineID + "/" + req.Volume.Name
	delete(p.h.volumes, key)
	delete(p.h.data, key)
	delete(p.h.held, key)
	delete(p.h.sizes, req.Dir+"/disk.raw")
	return nil
}

func (p volumes) Retire(_ context.Context, req, as volume.Request) error {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if p.h.has(req.MachineID, vmm.DeviceID("disk", req.Volume.Name)) {
		p.h.violated("volume " + req.Volume.Name + " put away under a guest that has it")
	}
	if err := p.h.failing["volume.retire"]; err != nil {
		return err
	}
	from, to := req.MachineID+"/"+req.Volume.Name, as.MachineID+"/"+as.Volume.Name
	if p.h.data[from] > 0 {
		p.h.data[to], p.h.volumes[to] = p.h.data[from], p.h.volumes[from]
		delete(p.h.data, from)
		delete(p.h.volumes, from)
		delete(p.h.sizes, req.Dir+"/disk.raw")
	}
	return p.h.failing["volume.retired"]
}

func (p volumes) Held(context.Context) ([]volume.Ref, error) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	var refs []volume.Ref
	for key := range p.h.held {
		id, name, _ := strings.Cut(key, "/")
		refs = append(refs, volume.Ref{MachineID: id, Name: name})
	}
	return refs, nil
}

// nics are of one network plugin; a guest keeps its device as long as the network is the same.
type nics struct {
	h    *host
	name string // "" = imaginary
}

func (p nics) Name() string { return cmp.Or(p.name, "imaginary") }

func (p nics) key(ref network.Ref) string                 { return p.name + ref.String() }
func (p nics) Validate(string, []network.Interface) error { return nil }
func (p nics) Identity(nic network.Interface) string      { return nic.NetworkID }

func (p nics) Events(ctx context.Context) <-chan network.Ref {
	ch := make(chan network.Ref, 64)
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	p.h.ripple[ch] = true
	context.AfterFunc(ctx, func() {
		p.h.mu.Lock()
		defer p.h.mu.Unlock()
		delete(p.h.ripple, ch)
		close(ch)
	})
	return ch
}

// wire changes what the plugin says of an interface, and tells. Ready and nothing else is what it says of itself.
func (h *host) wire(ref network.Ref, result network.Result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if result.State == network.StateReady && result.Backend == "" {
		delete(h.wires, ref.Name)
	} else {
		h.wires[ref.Name] = result
	}
	for ch := range h.ripple {
		select {
		case ch <- ref:
		default:
		}
	}
}

func (p nics) List(context.Context) ([]network.Ref, error) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	var refs []network.Ref
	for key := range p.h.nics {
		if rest, ok := strings.CutPrefix(key, p.name); ok {
			if id, name, both := strings.Cut(rest, "/"); both && len(id) == len(one) {
				refs = append(refs, network.Ref{MachineID: id, Name: name})
			}
		}
	}
	return refs, nil
}

func (p nics) Observe(_ context.Context, ref network.Ref) (network.Result, error) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if !p.h.nics[p.key(ref)] {
		return network.Result{State: network.StateAbsent}, nil
	}
	return network.Result{State: network.StateReady}, nil
}

func (p nics) Apply(_ context.Context, req network.Request) (network.Result, error) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	p.h.asked["apply "+req.Interface.Name]++
	if err := p.h.failing["apply"]; err != nil {
		return network.Result{}, err
	}
	p.h.nics[p.key(req.Ref())] = true
	p.h.wanted[p.key(req.Ref())] = req
	if other, ok := p.h.wires[req.Interface.Name]; ok && other.State != network.StateLeaving {
		return other, nil
	}
	return network.Result{
		State: network.StateReady, Handle: "nic://" + p.name + req.Interface.Name, Backend: network.BackendIsolated,
		MAC: fmt.Sprintf("mac of %s", req.Interface.NetworkID),
	}, nil
}

func (p nics) Delete(_ context.Context, ref network.Ref) (network.Result, error) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if p.h.has(ref.MachineID, vmm.DeviceID("nic", ref.Name)) {
		p.h.violated("network interface " + ref.Name + " removed under a guest that has it")
	}
	if other, ok := p.h.wires[ref.Name]; ok && other.State == network.StateLeaving {
		return other, nil
	}
	if err := p.h.failing["nic.delete"]; err != nil {
		return network.Result{}, err
	}
	delete(p.h.nics, p.key(ref))
	return network.Result{State: network.StateAbsent}, nil
}
