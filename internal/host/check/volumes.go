// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
)

// Volumes says what the configuration wants of disks.
type Volumes struct {
	Overlays      bool   // local disks may be qcow2 overlays
	StorageDaemon string // configured path; empty: looked for in PATH
	ServeCeph     bool   // RBD images go by storage daemons whatever the hypervisor can
}

// rbdDrivers are where distributions put QEMU's block driver for RBD, in FS notation.
var rbdDrivers = []string{"usr/lib/*/qemu/block-rbd.so", "usr/lib/qemu/block-rbd.so", "usr/lib64/qemu-kvm/block-rbd.so", "usr/lib64/qemu/block-rbd.so"}

func (f *found) volumeTools() []Item {
	if !f.onLinux() {
		return nil
	}
	lookPath := f.Probes.Finder.LookPath
	if lookPath == nil {
		lookPath = exec.LookPath
	}
	img, imgErr := lookPath("qemu-img")
	var items []Item
	switch {
	case imgErr == nil:
		items = one("qemu-img", OK, img, "")
	case f.Volumes.Overlays:
		items = one("qemu-img", Warn, "not found: overlays are configured, and machines whose disks are to be some cannot be created", "install it (Debian: qemu-utils), or set volumes.localDisk.overlays to never")
	default:
		items = one("qemu-img", OK, "not found: volumes in Ceph and overlays are refused without it (Debian: qemu-utils)", "")
	}
	return append(items, f.ceph(lookPath, imgErr == nil)...)
}

// ceph judges what volumes in Ceph take. Whether any will come is not known, so that nothing of it is a warning but what
// is configured and missing.
func (f *found) ceph(lookPath func(string) (string, error), img bool) []Item {
	const name = "ceph"
	daemon := f.Volumes.StorageDaemon
	if daemon == "" {
		daemon = "qemu-storage-daemon"
	}
	path, err := lookPath(daemon)
	if err != nil && f.Volumes.StorageDaemon != "" {
		return one(name, Fail, "the configured storage daemon "+daemon+" is not an executable", "correct volumes.ceph.storageDaemon")
	}
	var lacks []string
	if !img {
		lacks = append(lacks, "qemu-img (Debian: qemu-utils)")
	}
	served := f.Volumes.ServeCeph || f.used(host.CloudHypervisor)
	if served && err != nil {
		lacks = append(lacks, "qemu-storage-daemon (Debian: qemu-system-common)")
	}
	driver := f.rbdDriver()
	if driver == "" {
		lacks = append(lacks, "QEMU's block driver for RBD (Debian: qemu-block-extra)")
	}
	switch {
	case len(lacks) > 0 && f.Volumes.ServeCeph:
		return one(name, Warn, "volumes in Ceph are refused; missing: "+strings.Join(lacks, ", "), "install what is missing, or set volumes.ceph.access to auto")
	case len(lacks) > 0:
		return one(name, OK, "volumes in Ceph are refused; missing: "+strings.Join(lacks, ", "), "")
	case served:
		return one(name, OK, "RBD images are served by "+path+" with "+driver, "")
	}
	return one(name, OK, "RBD images are opened by the hypervisor with "+driver, "")
}

// rbdDriver is QEMU's block driver for RBD, empty if none is found as a module.
func (f *found) rbdDriver() string {
	root := f.Probes.Finder.FS
	if root == nil {
		root = os.DirFS("/")
	}
	for _, pattern := range rbdDrivers {
		if files, _ := fs.Glob(root, pattern); len(files) > 0 {
			return "/" + files[0]
		}
	}
	return ""
}
