// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/qemu/qmp"
)

// backendPatience is how long QEMU may keep the host's side of a device that is
// gone; it lets go some milliseconds after it says that the device is deleted.
const backendPatience = 5 * time.Second

// addDisk makes all parts of a disk, or none. boot is for a disk that firmware starts from.
func (p *plugging) addDisk(ctx context.Context, disk vmm.Disk, boot bool) (err error) {
	if err := p.dropDisk(ctx, disk.ID); err != nil { // what a killed call left
		return fmt.Errorf("remove the rest of an earlier one: %w", err)
	}
	block, err := checkMedium(disk)
	if err != nil {
		return err
	}
	if disk.VhostUser != "" {
		if err := p.checkShared(ctx); err != nil {
			return err
		}
		if err := checkServer(ctx, disk); err != nil {
			return err
		}
	}
	port, recorded, err := p.takePort(ctx, disk.ID)
	if err != nil {
		return err
	}
	parts := describeDisk(disk, block, port)
	if boot || recorded {
		parts.device = append(parts.device, option{"bootindex", 0})
	}
	defer func() {
		if err != nil {
			p.undo(ctx, disk.ID, (*plugging).dropDisk)
		}
	}()
	if err := p.addNode(ctx, disk, parts); err != nil {
		return err
	}
	if parts.chardev != nil {
		if err := p.ask(ctx, "chardev-add", p.reconnecting(parts.chardev), nil); err != nil {
			return machine.Wrap(machine.FailedPrecondition, err, "connect to the server of the disk")
		}
	}
	if err := p.ask(ctx, "device_add", parts.device.arguments(), nil); err != nil {
		return err
	}
	p.have.disks = sorted(append(p.have.disks, disk.ID))
	return nil
}

// addNode makes objects and block nodes; the secrets among them do not outlive it.
func (p *plugging) addNode(ctx context.Context, disk vmm.Disk, parts diskParts) error {
	for _, object := range slices.Concat(parts.objects, parts.secrets) {
		if err := p.ask(ctx, "object-add", object, nil); err != nil {
			return err
		}
	}
	if parts.node == nil {
		return nil
	}
	if disk.RBD != nil {
		config := filepath.Join(p.ref.RuntimeDir, rbdConfigFile)
		if err := writeFile(config, []byte(rbdConfig)); err != nil {
			return fmt.Errorf("write settings of librados: %w", err)
		}
		bottom := parts.node
		for below, ok := bottom["file"].(map[string]any); ok; below, ok = bottom["file"].(map[string]any) {
			bottom = below
		}
		bottom["conf"] = config
	}
	if err := p.ask(ctx, "blockdev-add", parts.node, nil); err != nil {
		return explainNode(disk, err)
	}
	for _, secret := range parts.secrets {
		if err := p.ask(ctx, "object-del", map[string]any{"id": secret["id"]}, nil); err != nil {
			return err
		}
	}
	return nil
}

// explainNode gives QEMU's refusal of a medium a kind.
func explainNode(disk vmm.Disk, err error) error {
	switch {
	case machine.IsKind(err, machine.Unavailable):
		return err
	case disk.RBD != nil && strings.Contains(err.Error(), "rbd") && strings.Contains(err.Error(), "driver"):
		return machine.Wrap(machine.Unimplemented, err, "QEMU has no driver for Ceph (Debian package qemu-block-extra)")
	case disk.RBD != nil:
		return machine.Wrap(machine.FailedPrecondition, err, "open the RBD image "+disk.RBD.Pool+"/"+disk.RBD.Image)
	}
	return machine.Wrap(machine.FailedPrecondition, err, "open the medium")
}

// reconnecting spells the interval of a chardev as this QEMU does: the option in seconds is gone in 11.
func (p *plugging) reconnecting(chardev map[string]any) map[string]any {
	if v := p.client.Version(); v.Major > 9 || v.Major == 9 && v.Minor >= 2 {
		data := chardev["backend"].(map[string]any)["data"].(map[string]any)
		delete(data, "reconnect")
		data["reconnect-ms"] = reconnectSeconds * 1000
	}
	return chardev
}

// checkShared refuses servers of disks on a machine whose memory they could not see.
func (p *plugging) checkShared(ctx context.Context) error {
	var list []struct {
		Share bool `json:"share"`
	}
	if err := p.ask(ctx, "query-memdev", nil, &list); err != nil {
		return fmt.Errorf("ask for the memory: %w", err)
	}
	for _, m := range list {
		if !m.Share {
			return machine.Errorf(machine.Unimplemented, "this VMM was started without shared memory, which vhost-user takes: it needs a new process")
		}
	}
	return nil
}

// serverPatience is how long a server on this host may take to accept.
const serverPatience = time.Second

// checkServer looks whether somebody serves a vhost-user disk: QEMU would stand still to wait for one.
func checkServer(ctx context.Context, disk vmm.Disk) error {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", disk.VhostUser)
	if err != nil {
		return machine.Wrap(machine.FailedPrecondition, err, "connect to the server of disk "+disk.ID)
	}
	conn.Close()
	return nil
}

// checkMedium finds out what a disk's path is, and that the cache policy is possible there: what QEMU says of it names
// neither.
func checkMedium(disk vmm.Disk) (blockDevice bool, err error) {
	if disk.Path == "" {
		return false, nil
	}
	st, err := os.Stat(disk.Path)
	if err != nil {
		return false, machine.Wrap(machine.FailedPrecondition, err, "look at disk "+disk.ID)
	}
	blockDevice = st.Mode().Type() == fs.ModeDevice
	if !blockDevice && !st.Mode().IsRegular() {
		return false, machine.Errorf(machine.FailedPrecondition, "disk %s: %s is neither a file nor a block device", disk.ID, disk.Path)
	}
	if flagsOf(disk.Cache).direct {
		f, err := os.OpenFile(disk.Path, os.O_RDONLY|directFlag, 0)
		if isUnsupported(err) {
			return false, machine.Errorf(machine.FailedPrecondition,
				"disk %s: cache policy %s goes past the page cache, which the file system of %s cannot do", disk.ID, disk.Cache, disk.Path)
		}
		if err != nil {
			return false, machine.Wrap(machine.FailedPrecondition, err, "look at disk "+disk.ID)
		}
		f.Close()
	}
	return blockDevice, nil
}

// addNIC makes all parts of a network interface, or none.
func (p *plugging) addNIC(ctx context.Context, nic vmm.NIC) (err error) {
	if err := p.dropNIC(ctx, nic.ID); err != nil {
		return fmt.Errorf("remove the rest of an earlier one: %w", err)
	}
	backend := nicBackend(nic)
	if nic.Kind == vmm.NICTap {
		files, err := openTap(nic.Tap, nic.Queues)
		if err != nil {
			return err
		}
		defer closeAll(files)
		vhost := openVhost(nic.Queues)
		defer closeAll(vhost)
		if backend, err = p.passTap(ctx, nic.ID, backend, files, vhost); err != nil {
			return err
		}
	}
	port, _, err := p.takePort(ctx, nic.ID)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			p.undo(ctx, nic.ID, (*plugging).dropNIC)
		}
	}()
	if backend != nil {
		if err := p.ask(ctx, "netdev_add", backend.arguments(), nil); err != nil {
			return err
		}
	}
	if err := p.ask(ctx, "device_add", nicDevice(nic, port).arguments(), nil); err != nil {
		return err
	}
	p.have.nics = sorted(append(p.have.nics, nic.ID))
	return nil
}

// passTap gives QEMU the descriptors of a tap, and names them in the back end. What was passed under such a name
// before, by a call that was killed, is replaced.
func (p *plugging) passTap(ctx context.Context, id string, backend options, tap, vhost []*os.File) (options, error) {
	pass := func(prefix string, files []*os.File) (string, error) {
		var names []string
		for i, f := range files {
			name := prefix + id + "-" + strconv.Itoa(i)
			if err := p.client.ExecuteFile(ctx, "getfd", map[string]string{"fdname": name}, nil, f); err != nil {
				return "", unavailable(fmt.Errorf("pass the tap to QEMU: %w", err))
			}
			names = append(names, name)
		}
		return strings.Join(names, ":"), nil
	}
	key, vhostKey := "fd", "vhostfd"
	if len(tap) > 1 {
		key, vhostKey = "fds", "vhostfds"
	}
	names, err := pass("tap-", tap)
	if err != nil {
		return nil, err
	}
	backend = append(backend, option{key, names})
	if len(vhost) == 0 {
		return backend, nil
	}
	if names, err = pass("vhost-", vhost); err != nil {
		return nil, err
	}
	return append(backend, option{"vhost", true}, option{vhostKey, names}), nil
}

// undo removes what a failed call made, also when it failed because its time was up.
func (p *plugging) undo(ctx context.Context, id string, drop func(*plugging, context.Context, string) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*backendPatience)
	defer cancel()
	if err := p.look(ctx); err != nil {
		return // QEMU cannot be asked; the next call finds what is left
	}
	if p.have.has(id) {
		return // it was plugged in after all, only the answer is lost
	}
	_ = drop(p, ctx, id) // the next call tries again
}

// dropDisk removes all parts of a disk but its device, which must be gone.
func (p *plugging) dropDisk(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, backendPatience)
	defer cancel()
	if slices.Contains(p.host.nodes, nodePrefix+id) {
		if err := p.insist(ctx, "blockdev-del", map[string]string{"node-name": nodePrefix + id}); err != nil {
			return err
		}
	}
	if slices.Contains(p.host.chardevs, chardevPrefix+id) {
		if err := p.insist(ctx, "chardev-remove", map[string]string{"id": chardevPrefix + id}); err != nil {
			return err
		}
	}
	marks, _ := p.host.marks(id)
	return p.dropObjects(ctx, append(marks, throttlePrefix+id, keyPrefix+id, passphrasePrefix+id)...)
}

// dropNIC removes all parts of a network interface but its device, which must be gone.
func (p *plugging) dropNIC(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, backendPatience)
	defer cancel()
	if slices.Contains(p.host.netdevs, netdevPrefix+id) {
		if err := p.insist(ctx, "netdev_del", map[string]string{"id": netdevPrefix + id}); err != nil && !qmp.HasClass(err, "DeviceNotFound") {
			return err
		}
	}
	marks, _ := p.host.marks(id)
	return p.dropObjects(ctx, marks...)
}

func (p *plugging) dropObjects(ctx context.Context, names ...string) error {
	for _, name := range names {
		if slices.Contains(p.host.objects, name) {
			if err := p.insist(ctx, "object-del", map[string]string{"id": name}); err != nil {
				return err
			}
			p.host.objects = slices.DeleteFunc(p.host.objects, func(o string) bool { return o == name })
		}
	}
	return nil
}

// insist repeats a command while QEMU refuses it because something is still in
// use, for which it has no class of its own.
func (v *virtualMachine) insist(ctx context.Context, command string, args any) error {
	var refusal error
	err := v.until(ctx, func() (bool, error) {
		err := v.ask(ctx, command, args, nil)
		if qmp.HasClass(err, "GenericError") {
			refusal = err
			return false, nil
		}
		return true, err
	})
	if err != nil && refusal != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return machine.Wrap(machine.Unavailable, refusal, "wait for QEMU to let go")
	}
	return err
}
