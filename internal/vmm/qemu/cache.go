// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"maps"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// cacheFlags is what a policy is made of, as QEMU's and libvirt's documentation define it.
type cacheFlags struct {
	direct     bool // the host's page cache is bypassed (of an RBD image: librbd's own cache)
	noFlush    bool // flushes end here
	writeCache bool // the guest is shown a write cache, and flushes it; else every write is flushed
}

// flagsOf takes no policy for writeback.
func flagsOf(policy vmm.CachePolicy) cacheFlags {
	switch policy {
	case vmm.CacheNone:
		return cacheFlags{direct: true, writeCache: true}
	case vmm.CacheWriteThrough:
		return cacheFlags{}
	case vmm.CacheDirectSync:
		return cacheFlags{direct: true}
	case vmm.CacheUnsafe:
		return cacheFlags{noFlush: true, writeCache: true}
	}
	return cacheFlags{writeCache: true}
}

// cachePolicies says that every policy is in force as asked, on every path. With vhost-user it is the serving process
// that keeps it; QEMU neither adds nor takes anything.
func cachePolicies() map[vmm.DiskPath]map[vmm.CachePolicy]vmm.CachePolicy {
	same := map[vmm.CachePolicy]vmm.CachePolicy{}
	for _, p := range []vmm.CachePolicy{vmm.CacheDirectSync, vmm.CacheWriteThrough, vmm.CacheNone, vmm.CacheWriteBack, vmm.CacheUnsafe} {
		same[p] = p
	}
	all := map[vmm.DiskPath]map[vmm.CachePolicy]vmm.CachePolicy{}
	for _, path := range []vmm.DiskPath{vmm.PathFile, vmm.PathBlock, vmm.PathRBD, vmm.PathVhostUser} {
		all[path] = maps.Clone(same)
	}
	return all
}

// diskPath is the way of a disk's requests.
func diskPath(disk vmm.Disk, blockDevice bool) vmm.DiskPath {
	switch {
	case disk.RBD != nil:
		return vmm.PathRBD
	case disk.VhostUser != "":
		return vmm.PathVhostUser
	case blockDevice:
		return vmm.PathBlock
	}
	return vmm.PathFile
}
