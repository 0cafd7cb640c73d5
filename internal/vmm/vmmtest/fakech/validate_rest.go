// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"fmt"
	"math/bits"
)

func checkVhostUsers(c *VMConfig, ids idSet) *chainError {
	if (len(c.Fs) > 0 || len(c.GenericVhostUser) > 0) && !c.sharedMemory() {
		return errShared()
	}
	common := []PciDeviceCommonConfig{}
	for _, d := range c.Fs {
		common = append(common, d.PciDeviceCommonConfig)
	}
	for _, d := range c.GenericVhostUser {
		common = append(common, d.PciDeviceCommonConfig)
	}
	for _, d := range c.Pmem {
		common = append(common, d.PciDeviceCommonConfig)
	}
	common = append(common, c.Rng.PciDeviceCommonConfig, c.Console.PciDeviceCommonConfig)
	if c.Rtc != nil {
		common = append(common, c.Rtc.PciDeviceCommonConfig)
	}
	return checkAll(c, ids, common)
}

// checkAll applies the checks every PCI device shares.
func checkAll(c *VMConfig, ids idSet, common []PciDeviceCommonConfig) *chainError {
	for _, p := range common {
		if err := checkPCI(c, p); err != nil {
			return err
		}
		if err := ids.add(p.ID); err != nil {
			return err
		}
		c.Iommu = c.Iommu || p.Iommu
	}
	return nil
}

func checkTopology(c *VMConfig, _ idSet) *chainError {
	t := c.Cpus.Topology
	if t == nil {
		return nil
	}
	total := uint32(t.ThreadsPerCore) * uint32(t.CoresPerDie) * uint32(t.DiesPerPackage) * uint32(t.Packages)
	switch {
	case total == 0:
		return failed("No part of the CPU topology can be zero")
	case t.ThreadsPerCore > 2:
		return failed("CPU topology supports at most 2 threads per core")
	case total != c.Cpus.MaxVcpus:
		return failed("Product of CPU topology parts does not match maximum vCPU")
	}
	return nil
}

func checkMemory(c *VMConfig, ids idSet) *chainError {
	m := &c.Memory
	switch {
	case m.HugepageSize != nil && !m.Hugepages:
		return failed("Huge page size specified but huge pages not enabled")
	case m.HugepageSize != nil && bits.OnesCount64(*m.HugepageSize) != 1:
		return failed(fmt.Sprintf("Huge page size is not power of 2: %d", *m.HugepageSize))
	case m.Shared && m.Mergeable:
		return errMergeable()
	}
	for _, z := range m.Zones {
		if z.Shared && z.Mergeable {
			return errMergeable()
		}
	}
	if len(c.UserDevices) > 0 && !c.sharedMemory() {
		return failed("Using user devices requires using shared memory or huge pages")
	}
	common := []PciDeviceCommonConfig{}
	for _, d := range c.UserDevices {
		common = append(common, d.PciDeviceCommonConfig)
	}
	for _, d := range c.Vdpa {
		common = append(common, d.PciDeviceCommonConfig)
	}
	return checkAll(c, ids, common)
}

func errMergeable() *chainError {
	return failed("Invalid to set both 'mergeable' and 'shared' for memory")
}

func checkVsock(c *VMConfig, ids idSet) *chainError {
	if c.Vsock == nil {
		return nil
	}
	if cid := c.Vsock.Cid; cid <= 2 || cid == 1<<32-1 {
		return failed(fmt.Sprintf("%d is a special VSOCK CID", cid))
	}
	return checkAll(c, ids, []PciDeviceCommonConfig{c.Vsock.PciDeviceCommonConfig})
}

func checkBalloon(c *VMConfig, ids idSet) *chainError {
	if c.Balloon == nil {
		return nil
	}
	if err := checkAll(c, ids, []PciDeviceCommonConfig{c.Balloon.PciDeviceCommonConfig}); err != nil {
		return err
	}
	if ram := c.Memory.total(); c.Balloon.Size >= ram {
		return failed(fmt.Sprintf("Balloon size (%d) greater than RAM (%d)", c.Balloon.Size, ram))
	}
	return nil
}

func checkDevices(c *VMConfig, ids idSet) *chainError {
	paths := map[string]struct{}{}
	for i := range c.Devices {
		d := &c.Devices[i]
		path := deref(d.Path)
		if _, dup := paths[path]; dup && d.Path != nil {
			return failedAs(kindConflict, "Duplicated device path: "+path)
		}
		paths[path] = struct{}{}
		if d.Path == nil && d.Fd == nil {
			return failed("VFIO device config must specify `path=` or `fd=`")
		}
		if err := checkAll(c, ids, []PciDeviceCommonConfig{d.PciDeviceCommonConfig}); err != nil {
			return err
		}
	}
	return nil
}

func checkZones(c *VMConfig, ids idSet) *chainError {
	for i := range c.Memory.Zones {
		if err := ids.add(&c.Memory.Zones[i].ID); err != nil {
			return err
		}
	}
	if p := c.Platform; p != nil && (p.NumPciSegments == 0 || p.NumPciSegments > 96) {
		return failed(fmt.Sprintf("Number of PCI segments (%d) not in range of 1 to 96", p.NumPciSegments))
	}
	return nil
}

// total is the RAM of the guest in bytes, hotplugged RAM included.
func (m *MemoryConfig) total() uint64 {
	sum := m.Size
	for _, z := range m.Zones {
		sum += z.Size + deref(z.HotpluggedSize)
	}
	return sum + deref(m.HotpluggedSize)
}

// hotplugged is the part of total that was added at run time, in bytes.
func (m *MemoryConfig) hotplugged() uint64 {
	sum := deref(m.HotpluggedSize)
	for _, z := range m.Zones {
		sum += deref(z.HotpluggedSize)
	}
	return sum
}
