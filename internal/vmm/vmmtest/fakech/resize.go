// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// resizeRequest is the body of vm.resize; sizes in bytes.
type resizeRequest struct {
	Vcpus   *uint32 `ch:"desired_vcpus,opt"`
	RAM     *uint64 `ch:"desired_ram,opt"`
	Balloon *uint64 `ch:"desired_balloon,opt"`
}

func (v *vmm) resize(r *resizeRequest) *chainError {
	if v.cfg == nil {
		return errNotCreated()
	}
	if v.vm == nil {
		v.resizeCold(r)
		return nil
	}
	v.mon.emit("vm", "resizing")
	if r.Vcpus != nil {
		if err := v.resizeVcpus(*r.Vcpus); err != nil {
			return err
		}
	}
	if r.RAM != nil {
		if err := v.resizeRAM(*r.RAM); err != nil {
			return err
		}
	}
	if r.Balloon != nil {
		if v.cfg.Balloon == nil {
			return failed("Error from device manager", "Missing virtio-balloon, can't proceed as expected")
		}
		// Not checked against the RAM: too large a balloon spoils later add calls.
		v.cfg.Balloon.Size = *r.Balloon
	}
	v.mon.emit("vm", "resized")
	return nil
}

// resizeCold edits the configuration and checks nothing.
func (v *vmm) resizeCold(r *resizeRequest) {
	if r.Vcpus != nil {
		v.cfg.Cpus.BootVcpus = *r.Vcpus
	}
	if r.RAM != nil {
		v.cfg.Memory.Size = *r.RAM
	}
	if r.Balloon != nil && v.cfg.Balloon != nil {
		v.cfg.Balloon.Size = *r.Balloon
	}
}

func (v *vmm) resizeVcpus(n uint32) *chainError {
	c := &v.cfg.Cpus
	switch {
	case n == c.BootVcpus:
		return nil
	case n == 0:
		return failed("Error from CPU manager", "Requested zero vCPUs")
	case v.vm.heldVcpus:
		return failedAs(kindTooMany, "Too Many Requests")
	case n > c.MaxVcpus:
		return failed("Error from CPU manager", "Requested vCPUs exceed maximum")
	}
	v.vm.heldVcpus = n < c.BootVcpus && v.script.HoldVcpus
	c.BootVcpus = n
	return nil
}

func (v *vmm) resizeRAM(n uint64) *chainError {
	m := &v.cfg.Memory
	if len(m.Zones) > 0 {
		return failed("Memory manager error", "Invalid RAM resize since memory zones are used")
	}
	if m.HotplugMethod == "VirtioMem" {
		if n < m.Size {
			return failed("Memory manager error", fmt.Sprintf("Invalid RAM resize: %d is below the boot size %d", n, m.Size))
		}
		m.HotpluggedSize = nil
		if n > m.Size {
			m.HotpluggedSize = ptr(n - m.Size)
		}
		return nil
	}
	if n > m.Size && n-m.Size > deref(m.HotplugSize) {
		return failed("Memory manager error", "Not enough space in the hotplug RAM region")
	}
	m.Size = n
	return nil
}

// resizeDiskRequest is the body of vm.resize-disk; the size in bytes.
type resizeDiskRequest struct {
	ID   string `ch:"id,req"`
	Size uint64 `ch:"desired_size,req"`
}

func (v *vmm) resizeDisk(r *resizeDiskRequest) *chainError {
	if v.cfg == nil {
		return errNotCreated()
	}
	if v.vm == nil {
		return failed("Failed resizing a disk image")
	}
	d := v.vm.disks[r.ID]
	if d == nil {
		return errUnknownDevice(r.ID)
	}
	if err := d.resize(r.Size); err != nil {
		return err.under("Error from device manager", "Disk resize error")
	}
	v.vm.guest.sees(r.ID)
	return nil
}

// resizeZoneRequest is the body of vm.resize-zone; the size in bytes.
type resizeZoneRequest struct {
	ID  string `ch:"id,req"`
	RAM uint64 `ch:"desired_ram,req"`
}

func (v *vmm) resizeZone(r *resizeZoneRequest) *chainError {
	if v.cfg == nil {
		return errNotCreated()
	}
	for i := range v.cfg.Memory.Zones {
		z := &v.cfg.Memory.Zones[i]
		if z.ID != r.ID {
			continue
		}
		if v.vm == nil {
			z.Size = r.RAM
		} else {
			z.HotpluggedSize = ptr(r.RAM - z.Size)
		}
		return nil
	}
	return failed("Failed resizing a memory zone")
}

// snapshotRequest is the body of vm.snapshot.
type snapshotRequest struct {
	URL string `ch:"destination_url,req"`
}

// snapshot writes the configuration of a paused machine into an existing directory. There is no guest
// memory to go with it, so nothing can be restored from it.
func (v *vmm) snapshot(r *snapshotRequest) *chainError {
	if v.vm == nil {
		return errNotRunning()
	}
	v.mon.emit("vm", "snapshotting")
	if v.vm.state != statePaused {
		return failed("Cannot snapshot VM", "Failed to snapshot migratable component",
			"Trying to snapshot while VM is running")
	}
	dir := strings.TrimPrefix(r.URL, "file://")
	f, err := os.OpenFile(filepath.Join(dir, "config.json"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return failed("Cannot send VM snapshot", osText(err))
	}
	defer f.Close()
	if _, err := f.Write(encodeConfig(v.dialect, *v.cfg)); err != nil {
		return failed("Cannot send VM snapshot", osText(err))
	}
	v.mon.emit("vm", "snapshotted")
	return nil
}

// restoreRequest is the body of vm.restore.
type restoreRequest struct {
	URL string `ch:"source_url,req,path"`
}

// restore always fails: the fake has no guest memory.
func (v *vmm) restore(r *restoreRequest) *chainError {
	if v.cfg != nil {
		return errAlreadyCreated()
	}
	return failed("Cannot restore VM", "Failed to restore migratable component", "No guest memory in "+r.URL)
}

type migrateRequest struct{}

// migrate always fails: the fake has no guest to send or to receive.
func (v *vmm) migrate(*migrateRequest) *chainError {
	return failed("Failed to send migratable component snapshot", "VM is not running")
}
