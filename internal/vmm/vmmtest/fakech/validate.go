// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// validate checks a configuration as vm.boot and the add calls do, in their order: the first mistake is
// the one reported. It also settles whether an IOMMU is needed.
func (v *vmm) validate(c *VMConfig) *chainError {
	ids := idSet{}
	for _, check := range []func(*VMConfig, idSet) *chainError{
		checkPayload, checkConsoles, checkCpus, checkDisks, checkNets, checkVhostUsers, checkTopology,
		checkMemory, checkVsock, checkBalloon, checkDevices, checkZones,
	} {
		if err := check(c, ids); err != nil {
			if err.kind == kindInternal {
				err.kind = kindInvalid
			}
			return err
		}
	}
	return nil
}

// idSet collects the identifiers of all device kinds, zones and rate limiter groups.
type idSet map[string]struct{}

func (s idSet) add(id *string) *chainError {
	if id == nil {
		return nil
	}
	if strings.HasPrefix(*id, "__") {
		return failed(fmt.Sprintf("Identifier %s is not invalid", *id))
	}
	if _, dup := s[*id]; dup {
		return failedAs(kindConflict, fmt.Sprintf("Identifier %s is not unique", *id))
	}
	s[*id] = struct{}{}
	return nil
}

func checkPayload(c *VMConfig, _ idSet) *chainError {
	p := c.Payload
	switch {
	case p == nil || p.Firmware == nil && p.Kernel == nil:
		return failed("Payload configuration is not bootable", "No bootitem provided: neither firmware nor kernel")
	case p.Firmware != nil && p.Kernel != nil:
		return failed("Payload configuration is not bootable",
			"Specifying a kernel is not supported when a firmware is provided")
	}
	return nil
}

func checkConsoles(c *VMConfig, _ idSet) *chainError {
	for _, con := range []CommonConsoleConfig{c.Console.CommonConsoleConfig, c.Serial.CommonConsoleConfig} {
		if con.Mode == "File" && con.File == nil {
			return failed("Path missing when using file console mode")
		}
	}
	return nil
}

func checkCpus(c *VMConfig, ids idSet) *chainError {
	if c.Cpus.MaxVcpus < c.Cpus.BootVcpus {
		return failed(fmt.Sprintf("Max CPUs (%d) lower than boot CPUs (%d)", c.Cpus.MaxVcpus, c.Cpus.BootVcpus))
	}
	if c.Cpus.MaxVcpus > 8192 {
		return failed(fmt.Sprintf("Too many CPUs: specified %d but 8192 is the limit", c.Cpus.MaxVcpus))
	}
	for _, g := range c.RateLimitGroups {
		if err := ids.add(&g.ID); err != nil {
			return err
		}
	}
	return nil
}

func (c *VMConfig) sharedMemory() bool {
	if c.Memory.Shared || c.Memory.Hugepages {
		return true
	}
	if c.Memory.Size != 0 {
		return false
	}
	for _, z := range c.Memory.Zones {
		if !z.Shared && !z.Hugepages {
			return false
		}
	}
	return true
}

func errShared() *chainError {
	return failed("Using vhost-user requires using shared memory or huge pages")
}

func checkDisks(c *VMConfig, ids idSet) *chainError {
	for i := range c.Disks {
		d := &c.Disks[i]
		limited := d.RateLimiter != nil || d.RateLimitGroup != nil
		switch {
		case d.VhostSocket != nil && d.Path != nil:
			return failed("Disk path and vhost socket both provided")
		case d.VhostUser && !c.sharedMemory():
			return errShared()
		case d.VhostUser && d.VhostSocket == nil:
			return failed("No socket provided when using vhost-user")
		case d.VhostUser && limited:
			return failed("Rate limiting is not supported with vhost-user")
		case d.RateLimitGroup != nil && !c.hasRateGroup(*d.RateLimitGroup):
			return failed("Invalid rate-limiter group")
		}
		if err := checkDisk(c, d); err != nil {
			return err
		}
		c.Iommu = c.Iommu || d.Iommu
		if err := ids.add(d.ID); err != nil {
			return err
		}
	}
	return nil
}

func checkDisk(c *VMConfig, d *DiskConfig) *chainError {
	if err := checkPCI(c, d.PciDeviceCommonConfig); err != nil {
		return err
	}
	switch {
	case d.NumQueues > uint64(c.Cpus.BootVcpus):
		return tooManyQueues(d.NumQueues, c)
	case bits.OnesCount16(d.QueueSize) != 1:
		return badQueueSize(d.QueueSize)
	case d.QueueSize <= 2:
		return failed(fmt.Sprintf("Block queue size must be greater than 2: %d", d.QueueSize))
	case d.VhostUser && d.Iommu:
		return failed("Device does not support being placed behind IOMMU")
	case d.RateLimiter != nil && d.RateLimitGroup != nil:
		return failed("Invalid rate-limiter group")
	case len(deref(d.Serial)) > 20:
		return failed(fmt.Sprintf("Block device serial length (%d) exceeds maximum allowed length (20)", len(*d.Serial)))
	}
	return nil
}

func tooManyQueues(n uint64, c *VMConfig) *chainError {
	return failed(fmt.Sprintf("Queue count (%d) must not exceed boot vCPUs (%d)", n, c.Cpus.BootVcpus))
}

func badQueueSize(n uint16) *chainError {
	return failed(fmt.Sprintf("Queue size must be a power of 2 no greater than 32768: %d", n))
}

func (c *VMConfig) hasRateGroup(id string) bool {
	return slices.ContainsFunc(c.RateLimitGroups, func(g RateLimiterGroupConfig) bool { return g.ID == id })
}

func checkPCI(c *VMConfig, p PciDeviceCommonConfig) *chainError {
	segments := uint16(1)
	if c.Platform != nil {
		segments = c.Platform.NumPciSegments
	}
	switch {
	case p.PciSegment >= segments:
		return failed(fmt.Sprintf("Invalid PCI segment id: %d", p.PciSegment))
	case c.Platform != nil && slices.Contains(c.Platform.IommuSegments, p.PciSegment) && !p.Iommu:
		return failed(fmt.Sprintf("Device is on an IOMMU PCI segment (%d) but not placed behind IOMMU", p.PciSegment))
	case p.PciDeviceID != nil && *p.PciDeviceID >= slotsPerSegment:
		return failed(fmt.Sprintf("Given PCI device ID (%d) is out of the supported range of 0..32", *p.PciDeviceID))
	case p.PciDeviceID != nil && *p.PciDeviceID == 0:
		return failed("Given PCI device ID (0) is reserved")
	}
	return nil
}

func checkNets(c *VMConfig, ids idSet) *chainError {
	for i := range c.Net {
		n := &c.Net[i]
		switch {
		case n.VhostUser && !c.sharedMemory():
			return errShared()
		case n.VhostUser && n.VhostSocket == nil:
			return failed("No socket provided when using vhost-user")
		case n.VhostUser && n.RateLimiter != nil:
			return failed("Rate limiting is not supported with vhost-user")
		}
		if err := checkNet(c, n); err != nil {
			return err
		}
		c.Iommu = c.Iommu || n.Iommu
		if err := ids.add(n.ID); err != nil {
			return err
		}
	}
	return nil
}

func checkNet(c *VMConfig, n *NetConfig) *chainError {
	if err := checkPCI(c, n.PciDeviceCommonConfig); err != nil {
		return err
	}
	queues := uint64(len(n.Fds) * 2)
	switch {
	case n.NumQueues < 2:
		return failed(fmt.Sprintf("Number of queues (%d) to virtio_net should be higher than 2", n.NumQueues))
	case n.Fds != nil && queues != n.NumQueues:
		return failed(fmt.Sprintf("Number of queues (%d) to virtio_net does not match the number of FDs (%d)",
			n.NumQueues, queues))
	case n.NumQueues/2 > uint64(c.Cpus.BootVcpus):
		return tooManyQueues(n.NumQueues, c)
	case bits.OnesCount16(n.QueueSize) != 1:
		return badQueueSize(n.QueueSize)
	case n.VhostUser && n.Iommu:
		return failed("Device does not support being placed behind IOMMU")
	case n.Mtu != nil && *n.Mtu < 1280:
		return failed(fmt.Sprintf("Provided MTU %d is lower than 1280 (expected by VIRTIO specification)", *n.Mtu))
	case !n.OffloadCsum && (n.OffloadTso || n.OffloadUfo):
		return failed(`"offload_tso" and "offload_ufo" depend on "offload_csum"`)
	case n.Mask != nil && n.IP == nil:
		return failed("Mask provided without an IP")
	case n.IP != nil && n.Mask == nil:
		return failed("IP provided without a mask")
	}
	return nil
}
