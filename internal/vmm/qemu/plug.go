// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/qemu/qmp"
)

var _ vmm.Plugger = (*virtualMachine)(nil)

// plugging is a call that changes devices: alone, on the right VM, with what there was when it began.
type plugging struct {
	*virtualMachine
	status string
	have   peripherals
	host   backends
}

func (v *virtualMachine) plugging(ctx context.Context) (*plugging, func(), error) {
	release, err := v.exclusive(ctx)
	if err != nil {
		return nil, nil, err
	}
	p := &plugging{virtualMachine: v}
	if p.status, err = v.status(ctx); err == nil {
		err = p.look(ctx)
	}
	if err != nil {
		release()
		return nil, nil, unavailable(err)
	}
	return p, release, nil
}

func (p *plugging) look(ctx context.Context) (err error) {
	if p.have, err = p.peripherals(ctx); err != nil {
		return err
	}
	p.host, err = p.backends(ctx)
	return err
}

// idle tells whether no guest runs that could hold on to a device or find a new one.
func (p *plugging) idle() bool { return stateOf(p.status) == vmm.StateIdle }

// arrival is what may be done for a device that is to be plugged in: nothing, if it is there to stay.
func (p *plugging) arrival(id string) (there bool, err error) {
	switch {
	case p.have.has(id) && slices.Contains(p.host.leaving(), id):
		return false, machine.Errorf(machine.FailedPrecondition, "an earlier %s is still leaving the guest", id)
	case p.have.has(id):
		return true, nil
	case len(p.have.ports) == 0:
		return false, machine.Errorf(machine.Unimplemented,
			"this VMM was started without ports that devices could be plugged into: it needs a new process")
	}
	return false, nil
}

// AttachDisk plugs a disk in.
func (v *virtualMachine) AttachDisk(ctx context.Context, disk vmm.Disk) error {
	if err := validateDisk(disk); err != nil {
		return err
	}
	p, release, err := v.plugging(ctx)
	if err != nil {
		return err
	}
	defer release()
	if there, err := p.arrival(disk.ID); there || err != nil {
		return err
	}
	if len(p.have.disks) >= MaxDisks {
		return machine.Errorf(machine.Exhausted, "the machine has %d disks, more are not possible", MaxDisks)
	}
	if err := p.addDisk(ctx, disk, false); err != nil {
		return fmt.Errorf("attach disk %s: %w", disk.ID, err)
	}
	return p.settle(ctx)
}

// AttachNIC plugs a network interface in.
func (v *virtualMachine) AttachNIC(ctx context.Context, nic vmm.NIC) error {
	if err := validateNIC(nic); err != nil {
		return err
	}
	p, release, err := v.plugging(ctx)
	if err != nil {
		return err
	}
	defer release()
	if there, err := p.arrival(nic.ID); there || err != nil {
		return err
	}
	if len(p.have.nics) >= MaxNICs {
		return machine.Errorf(machine.Exhausted, "the machine has %d network interfaces, more are not possible", MaxNICs)
	}
	if err := p.addNIC(ctx, nic); err != nil {
		return fmt.Errorf("attach network interface %s: %w", nic.ID, err)
	}
	return p.settle(ctx)
}

// settle lets firmware and kernel of a guest that does not run find what came: a port that got a device meanwhile is
// without power until the machine is reset, and the order of booting is written down then.
func (p *plugging) settle(ctx context.Context) error {
	if !p.idle() {
		return nil
	}
	if err := p.resetToStart(ctx); err != nil {
		return fmt.Errorf("reset the machine for its next boot: %w", err)
	}
	return nil
}

// DetachDisk asks for a disk, and closes it when the guest has let go.
func (v *virtualMachine) DetachDisk(ctx context.Context, id string) error {
	return v.detach(ctx, id, (*plugging).dropDisk)
}

// DetachNIC is the same for network interfaces.
func (v *virtualMachine) DetachNIC(ctx context.Context, id string) error {
	return v.detach(ctx, id, (*plugging).dropNIC)
}

func (v *virtualMachine) detach(ctx context.Context, id string, drop func(*plugging, context.Context, string) error) error {
	if !validID(id) {
		return machine.Errorf(machine.Invalid, "device id %q is not possible", id)
	}
	p, release, err := v.plugging(ctx)
	if err != nil {
		return err
	}
	defer release()
	if p.have.has(id) {
		if err := p.requestUnplug(ctx, id); err != nil {
			return fmt.Errorf("detach %s: %w", id, err)
		}
		if p.idle() {
			if err := p.unplugAtRest(ctx, []string{id}); err != nil {
				return fmt.Errorf("detach %s: %w", id, err)
			}
		}
		if err := p.look(ctx); err != nil {
			return unavailable(err)
		}
	}
	if p.have.has(id) {
		return nil // the guest holds it
	}
	if err := drop(p, ctx, id); err != nil {
		return fmt.Errorf("close %s: %w", id, err)
	}
	return nil
}

// askAgain is how long a guest has for a request before it is repeated, which it must be: one that comes while a guest
// starts is lost. It must not come sooner: guests queue requests, and one that is left over takes out the next device
// in that place (seen with Linux), and a second press of a slot's button within five seconds takes the first one back.
const askAgain = 10 * time.Second

// requestUnplug asks the guest to let go of a device, unless it was asked just now. The mark comes first: a request
// that nobody remembers would let a device vanish that everybody takes for attached.
func (p *plugging) requestUnplug(ctx context.Context, id string) error {
	now := time.Now().Unix()
	old, asked := p.host.marks(id)
	if age := time.Duration(now-asked) * time.Second; !p.idle() && age >= 0 && age < askAgain {
		return nil
	}
	name := markName(id, now)
	if !slices.Contains(old, name) {
		// That such an object could hold limits is of no use.
		if err := p.ask(ctx, "object-add", map[string]any{"qom-type": "throttle-group", "id": name}, nil); err != nil {
			return fmt.Errorf("note that it is leaving: %w", err)
		}
		p.host.objects = append(p.host.objects, name)
	}
	err := p.ask(ctx, "device_del", map[string]string{"id": id}, nil)
	if err != nil && !qmp.HasClass(err, "DeviceNotFound") && !isUnderWay(err) {
		return err
	}
	return p.dropObjects(ctx, slices.DeleteFunc(old, func(o string) bool { return o == name })...)
}

// isUnderWay says that a guest was asked before, or is just busy with the device: the request stands, or is repeated
// later. QEMU has no class for it (softmmu/qdev-monitor.c, hw/pci/pcie.c).
func isUnderWay(err error) bool {
	return qmp.HasClass(err, "GenericError") &&
		(strings.Contains(err.Error(), "already in the process of unplug") || strings.Contains(err.Error(), "guest is busy"))
}

// ResizeDisk tells the guest the new size of a disk.
func (v *virtualMachine) ResizeDisk(ctx context.Context, id string, size int64) error {
	if size <= 0 {
		return machine.Errorf(machine.Invalid, "resize disk %s: %d bytes", id, size)
	}
	p, release, err := v.plugging(ctx)
	if err != nil {
		return err
	}
	defer release()
	switch {
	case !slices.Contains(p.have.disks, id):
		return machine.Errorf(machine.NotFound, "resize disk %s: the machine has no such disk", id)
	case slices.Contains(p.have.vhostUser, id):
		return machine.Errorf(machine.Unimplemented, "resize disk %s: its server has to tell the guest", id)
	}
	blocks, err := v.blockDevices(ctx)
	if err != nil {
		return unavailable(err)
	}
	i := slices.IndexFunc(blocks, func(b blockDevice) bool { return b.id() == id })
	if i < 0 {
		return machine.Errorf(machine.FailedPrecondition, "resize disk %s: it has no medium", id)
	}
	shown := blocks[i].Inserted.Image.Bytes
	switch {
	case size == shown:
		return nil
	case size < shown:
		return machine.Errorf(machine.Invalid, "resize disk %s: it has %d bytes and cannot shrink to %d", id, shown, size)
	}
	if size, err = v.mediumSize(ctx, id, size); err != nil {
		return fmt.Errorf("resize disk %s: %w", id, err)
	}
	if err := v.ask(ctx, "block_resize", map[string]any{"node-name": nodePrefix + id, "size": size}, nil); err != nil {
		return fmt.Errorf("resize disk %s: %w", id, err)
	}
	return nil
}

// mediumSize is what a disk is to be resized to: a raw medium is as large as it is, and must not be cut off.
func (v *virtualMachine) mediumSize(ctx context.Context, id string, wanted int64) (int64, error) {
	nodes, err := v.blockNodes(ctx)
	if err != nil {
		return 0, unavailable(err)
	}
	named := map[string]blockNode{}
	for _, n := range nodes {
		named[n.Name] = n
	}
	medium, ok := named[protocolPrefix+id]
	if !ok { // a VMM of an earlier version, where the medium's node has no name of its own
		medium = blockNode{Driver: "file", File: named[nodePrefix+id].File}
	}
	raw := named[nodePrefix+id].Driver == string(vmm.FormatRaw) || named[formatPrefix+id].Driver == string(vmm.FormatRaw)
	if !raw || medium.Driver == "rbd" {
		return wanted, nil
	}
	f, err := os.Open(medium.File)
	if err != nil {
		return 0, machine.Wrap(machine.FailedPrecondition, err, "look at the medium")
	}
	defer f.Close()
	there, err := f.Seek(0, io.SeekEnd) // of block devices too
	if err != nil {
		return 0, machine.Wrap(machine.FailedPrecondition, err, "look at the medium")
	}
	if there < wanted {
		return 0, machine.Errorf(machine.FailedPrecondition, "the medium has %d bytes, %d are wanted", there, wanted)
	}
	return there, nil
}

// freePorts lists the root ports that have nothing plugged in, by number.
func (p *plugging) freePorts(ctx context.Context) ([]int, error) {
	used := map[string]bool{}
	for _, id := range slices.Concat(p.have.disks, p.have.nics) {
		var bus string
		args := map[string]string{"path": peripheralPath + "/" + id, "property": "parent_bus"}
		err := p.ask(ctx, "qom-get", args, &bus)
		if qmp.HasClass(err, "GenericError") || qmp.HasClass(err, "DeviceNotFound") {
			continue // it went just now; its port shows that soon
		}
		if err != nil {
			return nil, fmt.Errorf("ask for the port of %s: %w", id, err)
		}
		used[path.Base(bus)] = true
	}
	var free []int
	for i := range p.have.ports {
		if !used[portName(i)] {
			free = append(free, i)
		}
	}
	return free, nil
}

// takePort finds a port for a device and writes down that it has it.
func (p *plugging) takePort(ctx context.Context, id string) (port string, boot bool, err error) {
	free, err := p.freePorts(ctx)
	if err != nil {
		return "", false, err
	}
	s, err := loadSlots(p.ref.StateDir)
	if err != nil {
		return "", false, err
	}
	i := s.choose(id, free)
	if i < 0 {
		return "", false, machine.Errorf(machine.Exhausted, "all %d ports for disks and network interfaces are in use", len(p.have.ports))
	}
	if had, ok := s.Ports[id]; !ok || had != i {
		s.claim(id, i)
		if err := s.save(p.ref.StateDir); err != nil {
			return "", false, err
		}
	}
	return portName(i), id == s.Boot, nil
}
