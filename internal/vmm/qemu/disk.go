// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"encoding/base64"
	"net"
	"path/filepath"
	"runtime"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// diskParts is all that a disk is made of in QEMU, in the order of making. Each part is the arguments of a QMP
// command; those without secrets are command line options too.
type diskParts struct {
	secrets []map[string]any // object-add; only while the node is made
	objects []map[string]any // object-add
	chardev map[string]any   // chardev-add, nil for none
	node    map[string]any   // blockdev-add, nil for none
	device  options          // device_add
}

// describeDisk describes a disk; blockDevice is of disk.Path.
func describeDisk(disk vmm.Disk, blockDevice bool, port string) diskParts {
	if disk.VhostUser != "" {
		return vhostUserDisk(disk, port)
	}
	var p diskParts
	flags := flagsOf(disk.Cache)
	node := formatNode(disk, blockDevice, flags)
	if disk.RBD != nil {
		p.secrets = rbdSecrets(disk)
	}
	if disk.Limits != (vmm.IOLimits{}) {
		p.objects = append(p.objects, map[string]any{
			"qom-type": "throttle-group", "id": throttlePrefix + disk.ID, "limits": limits(disk.Limits),
		})
		node["node-name"] = formatPrefix + disk.ID
		node = map[string]any{"driver": "throttle", "throttle-group": throttlePrefix + disk.ID, "file": node}
		if disk.ReadOnly {
			node["read-only"] = true
		}
		node["discard"] = "unmap"
	}
	node["node-name"] = nodePrefix + disk.ID
	node["cache"] = map[string]any{"direct": flags.direct, "no-flush": flags.noFlush}
	p.node = node
	p.device = blockDeviceOptions(disk, port, flags)
	return p
}

// formatNode is the node of the disk's format over that of its medium. Freed blocks are given back, and a lock keeps a
// second VMM away from a file.
func formatNode(disk vmm.Disk, blockDevice bool, flags cacheFlags) map[string]any {
	protocol := protocolNode(disk, blockDevice)
	protocol["node-name"] = protocolPrefix + disk.ID
	protocol["discard"] = "unmap"
	// The same for each layer: what is written down is what is in force, whatever is inherited.
	cache := map[string]any{"direct": flags.direct, "no-flush": flags.noFlush}
	protocol["cache"] = cache
	driver := string(vmm.FormatRaw)
	if disk.Format != "" {
		driver = string(disk.Format)
	}
	node := map[string]any{"driver": driver, "discard": "unmap", "cache": cache, "file": protocol}
	if disk.ReadOnly {
		node["read-only"], protocol["read-only"] = true, true
	}
	return node
}

func protocolNode(disk vmm.Disk, blockDevice bool) map[string]any {
	if disk.RBD != nil {
		return rbdNode(disk)
	}
	node := map[string]any{"driver": "file", "filename": disk.Path}
	if blockDevice {
		node["driver"] = "host_device"
	}
	if runtime.GOOS == "linux" {
		node["locking"] = "on"
	}
	return node
}

// blockDeviceOptions are the guest's side of a disk. A full host pauses the guest, which would otherwise take it for a
// broken disk and remount it read-only at best; other errors are the guest's to handle and stop nothing but that disk.
// A guest that is shown no write cache cannot switch one on: what was asked for stays in force.
func blockDeviceOptions(disk vmm.Disk, port string, flags cacheFlags) options {
	o := options{
		{"driver", "virtio-blk-pci"},
		{"id", disk.ID},
		{"bus", port},
		{"drive", nodePrefix + disk.ID},
		{"serial", disk.Serial},
		{"write-cache", "on"},
		{"werror", "enospc"},
		{"rerror", "report"},
	}
	if !flags.writeCache {
		o[5].value = "off"
		o = append(o, option{"config-wce", false})
	}
	return o
}

func limits(l vmm.IOLimits) map[string]any {
	all := map[string]any{}
	for name, value := range map[string]int64{
		"bps-total": l.TotalBytes, "bps-read": l.ReadBytes, "bps-write": l.WriteBytes,
		"iops-total": l.TotalOps, "iops-read": l.ReadOps, "iops-write": l.WriteOps,
	} {
		if value > 0 {
			all[name] = value
		}
	}
	return all
}

// rbdConfig is what librados reads in place of the host's own configuration: whom to ask is in the node, and a cluster
// that does not answer must not hold up the VMM, which can do nothing else meanwhile. Requests of the guest are not
// bounded by it. Seconds.
const rbdConfig = `[global]
client_mount_timeout = 10
rados_mon_op_timeout = 10
log_to_stderr = false
log_file = /dev/null
admin_socket =
`

// rbdConfigFile is where it is, in the runtime directory; it holds no secret.
const rbdConfigFile = "rbd.conf"

func rbdNode(disk vmm.Disk) map[string]any {
	r := disk.RBD
	var servers []map[string]string
	for _, m := range r.Monitors {
		if host, port, err := net.SplitHostPort(m); err == nil { // validateDisk refused the others
			servers = append(servers, map[string]string{"host": host, "port": port})
		}
	}
	node := map[string]any{"driver": "rbd", "pool": r.Pool, "image": r.Image, "server": servers, "auth-client-required": []string{"none"}}
	if r.User != "" {
		node["user"] = r.User
	}
	if r.Key != "" {
		node["key-secret"], node["auth-client-required"] = keyPrefix+disk.ID, []string{"cephx"}
	}
	if r.Passphrase != "" {
		node["encrypt"] = map[string]string{"format": "luks2", "key-secret": passphrasePrefix + disk.ID}
	}
	return node
}

// rbdSecrets are the objects through which QEMU gets the key (its bytes, which a keyring shows in base64) and the
// passphrase. They go by the control socket and are removed as soon as the image is open.
func rbdSecrets(disk vmm.Disk) []map[string]any {
	var all []map[string]any
	add := func(id, data string) {
		all = append(all, map[string]any{"qom-type": "secret", "id": id, "format": "base64", "data": data})
	}
	if disk.RBD.Key != "" {
		add(keyPrefix+disk.ID, disk.RBD.Key)
	}
	if disk.RBD.Passphrase != "" {
		add(passphrasePrefix+disk.ID, base64.StdEncoding.EncodeToString([]byte(disk.RBD.Passphrase)))
	}
	return all
}

// reconnectSeconds is how often QEMU looks for a vhost-user server that is gone; the guest's requests wait meanwhile.
const reconnectSeconds = 1

func vhostUserDisk(disk vmm.Disk, port string) diskParts {
	address := map[string]any{"type": "unix", "data": map[string]any{"path": disk.VhostUser}}
	return diskParts{
		chardev: map[string]any{
			"id": chardevPrefix + disk.ID,
			"backend": map[string]any{"type": "socket", "data": map[string]any{
				"addr": address, "server": false, "reconnect": reconnectSeconds,
			}},
		},
		device: options{
			{"driver", "vhost-user-blk-pci"},
			{"id", disk.ID},
			{"bus", port},
			{"chardev", chardevPrefix + disk.ID},
			{"num-queues", 1}, // more than the server has is an error, and it tells nobody how many that is
		},
	}
}

// validateDisk says why a disk is not possible.
func validateDisk(disk vmm.Disk) error {
	sources := 0
	for _, is := range []bool{disk.Path != "", disk.RBD != nil, disk.VhostUser != ""} {
		if is {
			sources++
		}
	}
	policies := cachePolicies()[diskPath(disk, false)]
	switch {
	case !validID(disk.ID):
		return machine.Errorf(machine.Invalid, "device id %q is not possible", disk.ID)
	case sources != 1:
		return machine.Errorf(machine.Invalid, "disk %s: want exactly one of path, rbd and vhost-user, have %d", disk.ID, sources)
	case disk.Path != "" && !filepath.IsAbs(disk.Path):
		return machine.Errorf(machine.Invalid, "disk %s: path %q is not absolute", disk.ID, disk.Path)
	case len(disk.Serial) > maxSerial:
		return machine.Errorf(machine.Invalid, "disk %s: serial %q is longer than %d bytes", disk.ID, disk.Serial, maxSerial)
	case disk.Format != "" && disk.Format != vmm.FormatRaw && disk.Format != vmm.FormatQcow2:
		return machine.Errorf(machine.Unimplemented, "disk %s: format %q is not possible with QEMU", disk.ID, disk.Format)
	case disk.Format == vmm.FormatQcow2 && disk.Path == "":
		return machine.Errorf(machine.Unimplemented, "disk %s: format qcow2 is possible in a file only", disk.ID)
	case disk.Cache != "" && policies[disk.Cache] == "":
		return machine.Errorf(machine.Unimplemented, "disk %s: cache policy %q is not possible with QEMU", disk.ID, disk.Cache)
	}
	if err := validateLimits(disk); err != nil {
		return err
	}
	if disk.RBD != nil {
		return validateRBD(disk)
	}
	if disk.VhostUser != "" {
		return validateVhostUser(disk)
	}
	return nil
}

// maxLimit is QEMU's (THROTTLE_VALUE_MAX).
const maxLimit = 1_000_000_000_000_000

func validateLimits(disk vmm.Disk) error {
	l := disk.Limits
	for _, v := range []int64{l.ReadBytes, l.WriteBytes, l.TotalBytes, l.ReadOps, l.WriteOps, l.TotalOps} {
		if v < 0 || v > maxLimit {
			return machine.Errorf(machine.Invalid, "disk %s: a limit of %d a second, want 0 to %d", disk.ID, v, int64(maxLimit))
		}
	}
	if l.TotalBytes > 0 && l.ReadBytes+l.WriteBytes > 0 || l.TotalOps > 0 && l.ReadOps+l.WriteOps > 0 {
		return machine.Errorf(machine.Invalid, "disk %s: a limit in total and one for reading or writing exclude each other", disk.ID)
	}
	return nil
}

func validateRBD(disk vmm.Disk) error {
	r := disk.RBD
	if r.Pool == "" || r.Image == "" || len(r.Monitors) == 0 {
		return machine.Errorf(machine.Invalid, "disk %s: pool, image and monitors of an RBD image must be given", disk.ID)
	}
	for _, m := range r.Monitors {
		if host, port, err := net.SplitHostPort(m); err != nil || host == "" || port == "" {
			return machine.Errorf(machine.Invalid, "disk %s: monitor %q is not host:port", disk.ID, m)
		}
	}
	if _, err := base64.StdEncoding.DecodeString(r.Key); err != nil {
		return machine.Errorf(machine.Invalid, "disk %s: the key is not base64", disk.ID)
	}
	return nil
}

func validateVhostUser(disk vmm.Disk) error {
	switch {
	case runtime.GOOS != "linux":
		return machine.Errorf(machine.Unimplemented, "disk %s: vhost-user exists on Linux only", disk.ID)
	case !filepath.IsAbs(disk.VhostUser):
		return machine.Errorf(machine.Invalid, "disk %s: socket %q is not absolute", disk.ID, disk.VhostUser)
	case disk.Limits != vmm.IOLimits{}:
		return machine.Errorf(machine.Unimplemented, "disk %s: limits are the vhost-user server's to keep", disk.ID)
	case disk.ReadOnly:
		return machine.Errorf(machine.Unimplemented, "disk %s: that it is read-only is the vhost-user server's to say", disk.ID)
	}
	return nil
}
