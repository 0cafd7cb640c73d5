// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

var _ vmm.Plugger = (*conn)(nil)

// AttachDisk plugs a disk in; see vmm.Plugger. After machine.Unavailable nobody knows whether it is there: the next
// call finds out.
func (v *conn) AttachDisk(ctx context.Context, d vmm.Disk) error {
	if err := validateDisk("disk", d, map[string]bool{}); err != nil {
		return err
	}
	return v.attach(ctx, disks, d.ID, func(info api.Info) error {
		if d.VhostUser != "" && !info.Config.Memory.Shared {
			return machine.Errorf(machine.Unimplemented, "the guest's memory is not shared, so that no vhost-user disk can be plugged in: the machine needs a new VMM")
		}
		if d.Path != "" && !reachable(info.Config, d.Path) {
			return confined(d.Path)
		}
		if err := checkDisk(ctx, "disk", d); err != nil {
			return err
		}
		_, err := v.client.AddDisk(ctx, diskOf(d))
		return err
	})
}

// AttachNIC plugs a network interface in; see vmm.Plugger.
func (v *conn) AttachNIC(ctx context.Context, n vmm.NIC) error {
	return v.attach(ctx, nics, n.ID, func(info api.Info) error {
		if err := validateNIC("nic", n, info.Config.CPUs.Boot, map[string]bool{}); err != nil {
			return err
		}
		if n.Kind == vmm.NICPCI && !reachable(info.Config, vfioDir) {
			return confined(vfioDir)
		}
		p, err := v.driver.openPlug(n)
		if err != nil {
			return err
		}
		defer p.close()
		return v.addNIC(ctx, p)
	})
}

// attach lets add plug in a device that is not there and that there is room for.
func (v *conn) attach(ctx context.Context, c deviceClass, id string, add func(info api.Info) error) error {
	doing := "attach " + string(c) + " " + id
	return v.change(ctx, doing, func(info api.Info, defined bool) error {
		if !defined {
			return api.ErrNotCreated
		}
		info, err := v.settle(ctx, info)
		if err != nil {
			return err
		}
		switch holdingsOf(info)[id] {
		case here:
			return nil
		case leaving:
			return api.ErrRemovalPending
		case absent:
		}
		if err := room(info, c); err != nil {
			return err
		}
		err = add(info)
		if errors.Is(err, api.ErrUnavailable) && ctx.Err() == nil {
			// The answer was lost, maybe not the request.
			if now, _, askErr := v.identify(ctx); askErr == nil && holdingsOf(now)[id] == here {
				return nil
			}
		}
		return err
	})
}

// settle ends the half VM of a boot that failed late: it says that it is not running, but takes devices as a running
// one does.
func (v *conn) settle(ctx context.Context, info api.Info) (api.Info, error) {
	if !idle(info) || info.DeviceTree == nil {
		return info, nil
	}
	if err := v.cutPower(ctx); err != nil {
		return info, err
	}
	info.DeviceTree = nil
	return info, nil
}

func idle(info api.Info) bool {
	return info.State == api.StateCreated || info.State == api.StateShutdown
}

// DetachDisk asks the guest to let go of a disk; see vmm.Plugger.
func (v *conn) DetachDisk(ctx context.Context, id string) error { return v.detach(ctx, disks, id) }

// DetachNIC asks the guest to let go of a network interface; see vmm.Plugger.
func (v *conn) DetachNIC(ctx context.Context, id string) error { return v.detach(ctx, nics, id) }

func (v *conn) detach(ctx context.Context, c deviceClass, id string) error {
	return v.change(ctx, "detach "+string(c)+" "+id, func(info api.Info, defined bool) error {
		if !defined || !c.owns(id) {
			return nil
		}
		info, err := v.settle(ctx, info)
		if err != nil {
			return err
		}
		switch holdingsOf(info)[id] {
		case here:
			return v.remove(ctx, id)
		case leaving:
			if v.major == versionOneRemoval {
				return nil // it would be refused and nobody would be asked
			}
			return v.remove(ctx, id)
		case absent:
		}
		return nil
	})
}

// remove asks for a removal. That the device is not known is no failure if it is gone or leaving, maybe by an answer
// that was lost.
func (v *conn) remove(ctx context.Context, id string) error {
	err := v.client.RemoveDevice(ctx, id)
	if errors.Is(err, api.ErrUnknownDevice) {
		now, _, askErr := v.identify(ctx)
		if askErr == nil && holdingsOf(now)[id] != here {
			return nil
		}
	}
	return err
}

// ResizeDisk tells the guest the size of a disk whose file or block device was grown; see vmm.Plugger. A qcow2 image
// is grown by the VMM itself, while it has the file open. A machine that is off sees the size when it boots.
func (v *conn) ResizeDisk(ctx context.Context, id string, size int64) error {
	if size <= 0 || size%sectorSize != 0 {
		return machine.InvalidField("size", "is %d, must be a positive multiple of %d", size, sectorSize)
	}
	return v.change(ctx, "resize disk "+id, func(info api.Info, defined bool) error {
		if !defined {
			return api.ErrNotCreated
		}
		disk, ok := diskIn(info, id)
		switch {
		case !ok && holdingsOf(info)[id] == leaving:
			return api.ErrRemovalPending
		case !ok:
			return api.ErrUnknownDevice
		case disk.VhostUser && idle(info):
			return nil
		case disk.VhostUser:
			return machine.Errorf(machine.Unimplemented, "Cloud Hypervisor does not resize a disk that a vhost-user server serves; the guest sees the size when it boots again")
		}
		if err := checkGrowth(disk, size); err != nil {
			return err
		}
		switch {
		case idle(info):
			return nil
		case info.State != api.StateRunning:
			// The VMM would let the disk alone go on.
			return api.ErrWrongState
		}
		return v.client.ResizeDisk(ctx, id, size)
	})
}

func diskIn(info api.Info, id string) (api.Disk, bool) {
	for _, d := range info.Config.Disks {
		if d.ID == id && id != configDiskID {
			return d, true
		}
	}
	return api.Disk{}, false
}

// reachable tells whether Landlock lets a VMM open a path that its machine did not name when it was defined.
func reachable(c api.VMConfig, path string) bool {
	if !c.LandlockEnable {
		return true
	}
	for _, rule := range c.LandlockRules {
		rel, err := filepath.Rel(rule.Path, path)
		if err == nil && rel != ".." && !strings.HasPrefix(rel, "../") && strings.Contains(rule.Access, "r") && strings.Contains(rule.Access, "w") {
			return true
		}
	}
	return false
}

func confined(path string) error {
	return machine.Errorf(machine.Unimplemented, "this VMM is confined by Landlock to the paths of its start, and %s is none of them: the machine needs a new VMM", path)
}
