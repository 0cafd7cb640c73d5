// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// Where QEMU keeps what has an id: devices, and other objects.
const (
	peripheralPath = "/machine/peripheral"
	objectPath     = "/objects"
)

// peripherals is what is plugged into a machine.
type peripherals struct {
	disks, nics, ports []string
	vhostUser          []string // those of disks that a server has
}

func (p peripherals) has(id string) bool {
	return slices.Contains(p.disks, id) || slices.Contains(p.nics, id)
}

type qomEntry struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

func (v *virtualMachine) qomList(ctx context.Context, path string) ([]qomEntry, error) {
	var list []qomEntry
	err := v.ask(ctx, "qom-list", map[string]string{"path": path}, &list)
	return list, err
}

func (v *virtualMachine) peripherals(ctx context.Context) (peripherals, error) {
	list, err := v.qomList(ctx, peripheralPath)
	if err != nil {
		return peripherals{}, fmt.Errorf("list devices: %w", err)
	}
	var p peripherals
	for _, item := range list {
		switch strings.TrimSuffix(strings.TrimPrefix(item.Type, "child<"), ">") {
		case "virtio-blk-pci":
			p.disks = append(p.disks, item.Name)
		case "vhost-user-blk-pci":
			p.disks = append(p.disks, item.Name)
			p.vhostUser = append(p.vhostUser, item.Name)
		case "virtio-net-pci":
			p.nics = append(p.nics, item.Name)
		case "vfio-pci":
			if strings.HasPrefix(item.Name, vmm.DeviceID("nic", "")) {
				p.nics = append(p.nics, item.Name)
			}
		case "pcie-root-port":
			p.ports = append(p.ports, item.Name)
		}
	}
	p.disks, p.nics, p.ports = sorted(p.disks), sorted(p.nics), sorted(p.ports)
	return p, nil
}

// backends is the host's side of devices, by the device's id; of each the whole name.
type backends struct {
	nodes, objects, chardevs, netdevs []string
}

// marks are the objects that say that the guest was asked to let go of a device, with the second of the request.
func (b backends) marks(id string) (names []string, asked int64) {
	for _, name := range b.objects {
		if marked, at := parseMark(name); marked == id {
			names = append(names, name)
			asked = max(asked, at)
		}
	}
	return names, asked
}

// leaving lists the devices that the guest was asked to let go of.
func (b backends) leaving() []string {
	var ids []string
	for _, name := range b.objects {
		if id, _ := parseMark(name); id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// markName is leaving-<second>-<id>. The object lives in QEMU since nothing else is sure to live as long as the request.
func markName(id string, at int64) string { return fmt.Sprintf("%s%d-%s", leavingPrefix, at, id) }

// parseMark returns no id if it is not one.
func parseMark(name string) (id string, at int64) {
	rest, ok := strings.CutPrefix(name, leavingPrefix)
	if !ok {
		return "", 0
	}
	second, id, _ := strings.Cut(rest, "-")
	at, err := strconv.ParseInt(second, 10, 64)
	if err != nil {
		return "", 0
	}
	return id, at
}

// disks and nics list the devices of which something exists.
func (b backends) disks() []string {
	return slices.Concat(withPrefix(nodePrefix, b.nodes), withPrefix(chardevPrefix, b.chardevs))
}

func (b backends) nics() []string { return withPrefix(netdevPrefix, b.netdevs) }

func withPrefix(prefix string, names []string) []string {
	var ids []string
	for _, name := range names {
		if id, ok := strings.CutPrefix(name, prefix); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// netdevLine finds network back ends in what QEMU's monitor for people shows ("info network", net/net.c:
// print_net_client): no command for programs lists them.
var netdevLine = regexp.MustCompile(`(?m)^[ \\]*(` + netdevPrefix + `[A-Za-z0-9_.-]+): index=`)

// backends asks for the host's side of all devices.
func (v *virtualMachine) backends(ctx context.Context) (backends, error) {
	var b backends
	nodes, err := v.blockNodes(ctx)
	if err != nil {
		return b, err
	}
	for _, node := range nodes {
		b.nodes = append(b.nodes, node.Name)
	}
	objects, err := v.qomList(ctx, objectPath)
	if err != nil {
		return b, fmt.Errorf("list objects: %w", err)
	}
	for _, o := range objects {
		b.objects = append(b.objects, o.Name)
	}
	var chardevs []struct {
		Label string `json:"label"`
	}
	if err := v.ask(ctx, "query-chardev", nil, &chardevs); err != nil {
		return b, fmt.Errorf("list connections: %w", err)
	}
	for _, c := range chardevs {
		b.chardevs = append(b.chardevs, c.Label)
	}
	var text string
	if err := v.ask(ctx, "human-monitor-command", map[string]string{"command-line": "info network"}, &text); err != nil {
		return b, fmt.Errorf("list network back ends: %w", err)
	}
	for _, match := range netdevLine.FindAllStringSubmatch(text, -1) {
		b.netdevs = append(b.netdevs, match[1])
	}
	return b, nil
}

// blockNode is one of QEMU's block nodes.
type blockNode struct {
	Name   string `json:"node-name"`
	Driver string `json:"drv"`
	File   string `json:"file"`
}

func (v *virtualMachine) blockNodes(ctx context.Context) ([]blockNode, error) {
	var list []blockNode
	if err := v.ask(ctx, "query-named-block-nodes", map[string]bool{"flat": true}, &list); err != nil {
		return nil, fmt.Errorf("list block nodes: %w", err)
	}
	return list, nil
}

// blockDevice is the guest's side of a disk.
type blockDevice struct {
	QDev     string `json:"qdev"`
	IOStatus string `json:"io-status"`
	Inserted struct {
		Image struct {
			Bytes int64 `json:"virtual-size"`
		} `json:"image"`
	} `json:"inserted"`
}

func (b blockDevice) id() string { return deviceOf(b.QDev) }

func (v *virtualMachine) blockDevices(ctx context.Context) ([]blockDevice, error) {
	var list []blockDevice
	if err := v.ask(ctx, "query-block", nil, &list); err != nil {
		return nil, fmt.Errorf("list block devices: %w", err)
	}
	return list, nil
}

// deviceOf is the id in "/machine/peripheral/<id>/virtio-backend", or the id alone.
func deviceOf(qdev string) string {
	if rest, ok := strings.CutPrefix(qdev, peripheralPath+"/"); ok {
		id, _, _ := strings.Cut(rest, "/")
		return id
	}
	return path.Base(qdev)
}

// Inspect asks how the VM is.
func (v *virtualMachine) Inspect(ctx context.Context) (vmm.Observation, error) {
	o, err := v.inspect(ctx)
	if err != nil {
		return vmm.Observation{}, unavailable(err)
	}
	return o, nil
}

func (v *virtualMachine) inspect(ctx context.Context) (vmm.Observation, error) {
	var none vmm.Observation
	id, err := v.uuid(ctx)
	if err != nil {
		return none, err
	}
	status, err := v.status(ctx)
	if err != nil {
		return none, err
	}
	devices, err := v.peripherals(ctx)
	if err != nil {
		return none, err
	}
	host, err := v.backends(ctx)
	if err != nil {
		return none, err
	}
	blocks, err := v.blockDevices(ctx)
	if err != nil {
		return none, err
	}
	o := vmm.Observation{
		State: stateOf(status), MachineID: id, PID: v.client.PeerPID(), Version: v.client.Version().String(),
		Disks:     slices.Compact(sorted(slices.Concat(devices.disks, host.disks()))),
		NICs:      slices.Compact(sorted(slices.Concat(devices.nics, host.nics()))),
		Leaving:   slices.DeleteFunc(slices.Compact(sorted(host.leaving())), func(id string) bool { return !devices.has(id) }),
		DiskBytes: map[string]int64{},
	}
	for _, b := range blocks {
		if id := b.id(); slices.Contains(devices.disks, id) {
			o.DiskBytes[id] = b.Inserted.Image.Bytes
		}
	}
	if status == ioError {
		o.Problem = problemOf(blocks)
	}
	return o, nil
}

// ioError is the run state of a guest that was paused since the host could not write for it.
const ioError = "io-error"

// problemOf says which disk paused the guest, and why.
func problemOf(blocks []blockDevice) string {
	for _, b := range blocks {
		switch b.IOStatus {
		case "nospace":
			return b.id() + ": no space left on the host"
		case "failed":
			return b.id() + ": the host could not read or write"
		}
	}
	return "the host could not write for a disk"
}
