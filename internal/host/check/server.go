// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"strings"
)

func (f *found) server() []Item {
	if f.factsErr != nil {
		return one("server", Fail, f.factsErr.Error(), "mount /proc and /sys")
	}
	system := "Linux"
	if !f.onLinux() {
		system = f.facts.OS
	}
	detail := fmt.Sprintf("%s: %s, %s, %s %s", f.facts.Hostname, f.facts.Arch, count(f.facts.CPUs, "CPU"), system,
		f.facts.KernelRelease)
	if n := len(f.facts.NUMANodes); n > 1 {
		detail += fmt.Sprintf(", %d NUMA nodes", n)
	}
	if f.facts.Arch != "amd64" && f.facts.Arch != "arm64" {
		return one("server", Fail, detail, "machines run on amd64 and arm64 only")
	}
	return one("server", OK, detail, "")
}

// littleMemory is where a server has no room for another usual guest.
const littleMemory = 1 << 30

func (f *found) memory() []Item {
	if f.factsErr != nil {
		return nil
	}
	detail := size(f.facts.MemoryTotal)
	if f.facts.MemoryAvailable == 0 {
		return one("memory", OK, detail, "")
	}
	detail += ", " + size(f.facts.MemoryAvailable) + " available"
	// Memory set aside as hugepages is not "available" and still there for guests.
	if f.facts.MemoryAvailable < littleMemory && f.HugePages == 0 {
		return one("memory", Warn, detail, "stop something: the next machine may not find the memory it is promised")
	}
	return one("memory", OK, detail, "")
}

func (f *found) hugePages() []Item {
	if !f.onLinux() || f.factsErr != nil {
		return nil
	}
	var pools []string
	var total, free uint64
	for _, p := range f.facts.HugePages {
		if p.Total > 0 {
			pools = append(pools, fmt.Sprintf("%d of %d free of %s each", p.Free, p.Total, size(p.SizeBytes)))
		}
		if p.SizeBytes == f.HugePages {
			total, free = p.Total, p.Free
		}
	}
	detail := strings.Join(pools, "; ")
	if detail == "" {
		detail = "none set aside"
	}
	const name = "hugepages"
	switch {
	case f.HugePages == 0:
		return one(name, OK, detail+"; not asked for by the configuration", "")
	case total == 0:
		return one(name, Fail, fmt.Sprintf("%s; the configuration puts guests in pages of %s", detail, size(f.HugePages)),
			fmt.Sprintf("set some aside: echo N > /sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages", f.HugePages>>10))
	case free == 0:
		return one(name, Warn, detail, "all are in use: the next machine finds none; set more aside")
	default:
		return one(name, OK, detail, "")
	}
}

func (f *found) cgroups() []Item {
	if !f.onLinux() || f.factsErr != nil {
		return nil
	}
	switch f.facts.CgroupVersion {
	case 2:
		return one("cgroups", OK, "version 2", "")
	case 1:
		return one("cgroups", Warn, "version 1 (or hybrid): machines run without limits of their own",
			"boot with systemd.unified_cgroup_hierarchy=1")
	default:
		return one("cgroups", Warn, "not mounted: machines run without limits of their own", "mount /sys/fs/cgroup")
	}
}

func (f *found) supervisor() []Item {
	if !f.onLinux() || f.factsErr != nil {
		return nil
	}
	if f.facts.Systemd {
		return one("supervisor", OK, "systemd is process 1: each machine becomes a service of its own", "")
	}
	return one("supervisor", Warn, "systemd is not process 1: machines run as detached processes. They outlive the "+
		"daemon, but not a stop of its container",
		"fine for development; run production servers under systemd")
}

// count writes "1 CPU" or "2 CPUs".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// size writes bytes for people: three digits at least, units of 1024.
func size(bytes uint64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	value, unit := float64(bytes), 0
	for value >= 1024 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	if unit == 0 || value == float64(uint64(value)) {
		return fmt.Sprintf("%d %s", uint64(value), units[unit])
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
