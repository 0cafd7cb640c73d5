// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"slices"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

// deviceClass is a kind of device that comes and goes, with the first word of its ids.
type deviceClass string

const (
	disks deviceClass = "disk"
	nics  deviceClass = "nic"
)

func (c deviceClass) owns(id string) bool { return strings.HasPrefix(id, vmm.DeviceID(string(c), "")) }

// presence is where a device is.
type presence int

const (
	absent presence = iota
	here
	// leaving: the guest was asked to let go of it. The VMM takes such a device out of the configuration at once, so
	// that a restart of the guest completes the removal; until then it stays in the device tree, with its file open
	// and locked and its slot taken. That is the only trace, and it outlives every connection.
	leaving
)

// holdings are the devices of a VM, by id.
type holdings map[string]presence

// holdingsOf derives them from what the VMM says at one time. An entry of the tree without a place on the bus is what
// an add without a free slot leaves behind: the guest has never seen it.
func holdingsOf(info api.Info) holdings {
	h := holdings{}
	for id, node := range info.DeviceTree {
		onBus := node.PCIBDF != nil || node.Parent != nil
		if onBus && (disks.owns(id) || nics.owns(id)) {
			h[id] = leaving
		}
	}
	for _, d := range info.Config.Disks {
		if d.ID != configDiskID {
			h[d.ID] = here
		}
	}
	for _, n := range info.Config.Net {
		h[n.ID] = here
	}
	for _, d := range info.Config.Devices {
		h[d.ID] = here
	}
	return h
}

// all returns the ids of a class, sorted.
func (h holdings) all(c deviceClass) []string {
	return h.where(func(id string, _ presence) bool { return c.owns(id) })
}

// leavingIDs returns those that are leaving, sorted.
func (h holdings) leavingIDs() []string {
	return h.where(func(_ string, p presence) bool { return p == leaving })
}

func (h holdings) where(take func(string, presence) bool) []string {
	var ids []string
	for id, p := range h {
		if take(id, p) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// room says whether one more device fits. It is asked before the VMM is: one that finds no slot keeps the device half
// made, its file locked and its id taken, until the guest restarts.
func room(info api.Info, c deviceClass) error {
	most := map[deviceClass]int{disks: maxDisks, nics: maxNICs}[c]
	if n := len(holdingsOf(info).all(c)); n >= most {
		return machine.Errorf(machine.Exhausted, "the machine has %d devices of kind %q, at most %d are possible (those that are leaving count)", n, c, most)
	}
	taken := 0
	for _, node := range info.DeviceTree {
		if node.PCIBDF != nil {
			taken++
		}
	}
	if taken >= busSlots {
		return machine.Errorf(machine.Exhausted, "all %d slots of the guest's PCI bus are taken (those of devices that are leaving, too)", busSlots)
	}
	return nil
}
