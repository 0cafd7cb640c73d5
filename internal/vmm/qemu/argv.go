// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// Names of the files below the machine's directories.
const (
	qmpSocket      = "qmp.sock"      // ours
	operatorSocket = "operator.sock" // a second QMP server, free for a person
	serialSocket   = "serial.sock"
	agentSocket    = "agent.sock"
	ignitionFile   = "ignition.json"
	uefiVars       = "uefi-vars.fd" // in the state directory: it outlives host reboots
)

// Prefixes of names inside QEMU, before a device's id. All that a device is made of can be found by them.
const (
	nodePrefix       = "b-"       // block node that the device uses
	formatPrefix     = "f-"       // block node below it, if that one is a filter
	protocolPrefix   = "p-"       // block node of the medium
	throttlePrefix   = "t-"       // object that holds the limits
	keyPrefix        = "k-"       // object that holds the key of a cluster, while it is needed
	passphrasePrefix = "l-"       // object that holds the passphrase of an image, while it is needed
	chardevPrefix    = "c-"       // connection to a vhost-user server
	netdevPrefix     = "n-"       // network back end
	leavingPrefix    = "leaving-" // object that says that the guest was asked to let go; see markName
	portPrefix       = "rp"       // root ports, before a number
)

// portsPerSlot is the number of functions of a PCI slot.
const portsPerSlot = 8

// Fixed places on the root bus. Root ports start at firstPortSlot; whatever
// else a machine has sits above the highest that they can reach.
const (
	firstPortSlot = 0x02
	agentSlot     = 0x1b
	rngSlot       = 0x1c
	panicSlot     = 0x1d
)

// agentChardev is the host's side of the guest agent's channel, agentPort the name by which agents find theirs.
const (
	agentChardev = "agent"
	agentPort    = "org.qemu.guest_agent.0"
)

// ignitionKey is the fw_cfg file in which Ignition looks on platform qemu.
const ignitionKey = "opt/com.coreos/config"

// argv is a command line under construction.
type argv []string

func (a *argv) add(args ...string) { *a = append(*a, args...) }

// opt adds an option with a comma-separated value.
func (a *argv) opt(name string, parts ...string) { a.add("-"+name, strings.Join(parts, ",")) }

// quote protects a value in a comma-separated option.
func quote(v string) string { return strings.ReplaceAll(v, ",", ",,") }

// commandLine is all of QEMU's arguments. ports are the places of the devices, blockDevice tells which disks are
// block devices; it has no other input, so that tests can compare it as a whole.
func (d *Driver) commandLine(cfg vmm.Config, ports map[string]int, blockDevice func(path string) bool) ([]string, error) {
	a := argv{d.o.Binary}
	a.add("-nodefaults", "-no-user-config", "-S", "-no-shutdown")
	// The guest's own policy decides what follows a panic; we are only told.
	a.add("-action", "panic=none")
	a.opt("name", "guest="+quote(cfg.MachineID), "debug-threads=on")
	a.add("-uuid", cfg.MachineID, "-msg", "timestamp=on", "-display", "none")
	if runtime.GOOS == "linux" {
		a.add("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
	}
	d.platform(&a, cfg)
	if err := d.boot(&a, cfg); err != nil {
		return nil, err
	}
	channels(&a, cfg.Ref)
	if cfg.GuestAgent {
		agentChannel(&a, cfg.Ref)
	}
	a.add("-object", "rng-builtin,id=rng0")
	a.add("-device", fmt.Sprintf("virtio-rng-pci,rng=rng0,bus=pcie.0,addr=0x%x", rngSlot))
	a.add("-device", fmt.Sprintf("pvpanic-pci,bus=pcie.0,addr=0x%x", panicSlot))
	if cfg.Ignition != nil {
		a.opt("fw_cfg", "name="+ignitionKey, "file="+quote(filepath.Join(cfg.RuntimeDir, ignitionFile)))
	}
	return a, d.devices(&a, cfg, ports, blockDevice)
}

// platform adds machine, processor and memory.
func (d *Driver) platform(a *argv, cfg vmm.Config) {
	machineType := []string{"q35", "accel=" + d.o.Accelerator, "memory-backend=mem0", "dump-guest-core=off"}
	cpu := d.o.CPU
	if d.o.Architecture == "arm64" {
		machineType[0] = "virt"
		gic := "gic-version=max"
		if d.o.Accelerator == KVM {
			gic = "gic-version=host"
		}
		machineType = append(machineType, gic)
		if cpu == "max" && d.o.Accelerator == TCG {
			cpu += ",pauth-impdef=on" // the architected algorithm halves the speed
		}
	} else {
		machineType = append(machineType, "vmport=off")
	}
	if cfg.Boot.Kernel == "" && d.o.Firmware.Code != "" {
		machineType = append(machineType, "pflash0=code", "pflash1=vars")
	}
	a.opt("machine", machineType...)
	a.add("-cpu", cpu, "-smp", strconv.FormatInt(cfg.CPUs, 10))
	a.opt("m", "size="+strconv.FormatInt(cfg.MemoryBytes/1024, 10)+"k")
	size := strconv.FormatInt(cfg.MemoryBytes, 10)
	if runtime.GOOS == "linux" {
		// Shared, so that a volume's storage daemon can be attached later.
		a.add("-object", "memory-backend-memfd,id=mem0,share=on,size="+size)
	} else {
		a.add("-object", "memory-backend-ram,id=mem0,size="+size)
	}
	a.add("-rtc", "base=utc", "-boot", "strict=on")
}

// boot adds kernel or firmware.
func (d *Driver) boot(a *argv, cfg vmm.Config) error {
	b := cfg.Boot
	if b.Kernel != "" {
		a.add("-kernel", b.Kernel)
		if b.Initramfs != "" {
			a.add("-initrd", b.Initramfs)
		}
		line := b.CommandLine
		if line == "" {
			line = d.defaultCommandLine()
		}
		a.add("-append", line)
		return nil
	}
	switch fw := d.o.Firmware; {
	case fw.BIOS != "":
		a.add("-bios", fw.BIOS)
	case fw.Code != "":
		code := map[string]any{
			"node-name": "code", "driver": "raw", "read-only": true,
			"file": map[string]any{"driver": "file", "filename": fw.Code, "read-only": true, "locking": "off"},
		}
		vars := map[string]any{
			"node-name": "vars", "driver": "raw",
			"file": map[string]any{"driver": "file", "filename": filepath.Join(cfg.StateDir, uefiVars)},
		}
		for _, node := range []map[string]any{code, vars} {
			if err := a.blockdev(node); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Driver) defaultCommandLine() string {
	if d.o.Architecture == "arm64" {
		return "console=ttyAMA0"
	}
	return "console=ttyS0"
}

// channels adds the sockets.
func channels(a *argv, ref vmm.Ref) {
	a.socket("qmp", ref, qmpSocket)
	a.add("-mon", "chardev=qmp,mode=control")
	a.socket("operator", ref, operatorSocket)
	a.add("-mon", "chardev=operator,mode=control")
	a.socket("serial", ref, serialSocket)
	a.add("-serial", "chardev:serial")
}

// agentChannel adds the guest agent's port, the first after the one that is reserved for a console.
func agentChannel(a *argv, ref vmm.Ref) {
	a.socket(agentChardev, ref, agentSocket)
	a.add("-device", fmt.Sprintf("virtio-serial-pci,id=agents,bus=pcie.0,addr=0x%x,max_ports=2", agentSlot))
	a.add("-device", "virtserialport,bus=agents.0,nr=1,chardev="+agentChardev+",name="+agentPort)
}

func (a *argv) socket(id string, ref vmm.Ref, name string) {
	a.opt("chardev", "socket", "id="+id, "path="+quote(filepath.Join(ref.RuntimeDir, name)), "server=on", "wait=off")
}

// devices adds the root ports and what is plugged into them at start. What needs a secret or a descriptor, or has a
// server that may not be there yet, is not among it: VM.Create plugs that in before the guest's first instruction.
func (d *Driver) devices(a *argv, cfg vmm.Config, ports map[string]int, blockDevice func(string) bool) error {
	for i := range d.portCount(cfg) {
		a.add("-device", rootPort(i))
	}
	for i, disk := range cfg.Disks {
		if diskPath(disk, false) == vmm.PathRBD || diskPath(disk, false) == vmm.PathVhostUser {
			continue
		}
		parts := describeDisk(disk, blockDevice(disk.Path), portName(ports[disk.ID]))
		for _, object := range parts.objects {
			if err := a.json("-object", object); err != nil {
				return err
			}
		}
		if err := a.blockdev(parts.node); err != nil {
			return err
		}
		if i == 0 && cfg.Boot.Kernel == "" { // else the kernel itself has the first place
			parts.device = append(parts.device, option{"bootindex", 0})
		}
		a.add("-device", parts.device.String())
	}
	for _, nic := range cfg.NICs {
		if nic.Kind == vmm.NICTap || nic.Kind == vmm.NICPCI {
			continue
		}
		if backend := nicBackend(nic); backend != nil {
			a.add("-netdev", backend.String())
		}
		a.add("-device", nicDevice(nic, portName(ports[nic.ID])).String())
	}
	return nil
}

// portCount is the number of root ports that a machine starts with.
func (d *Driver) portCount(cfg vmm.Config) int {
	return max(d.o.HotplugPorts, len(cfg.Disks)+len(cfg.NICs)+sparePorts)
}

func (a *argv) blockdev(node map[string]any) error { return a.json("-blockdev", node) }

func (a *argv) json(name string, value map[string]any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	a.add(name, string(raw))
	return nil
}

func portName(i int) string { return portPrefix + strconv.Itoa(i) }

// rootPort describes the i-th port. No I/O space is reserved: virtio needs
// none, and there is too little of it for more than a dozen ports.
func rootPort(i int) string {
	s := fmt.Sprintf("pcie-root-port,id=%s,bus=pcie.0,chassis=%d,slot=%d,addr=0x%x.0x%x,io-reserve=0",
		portName(i), i+1, i, firstPortSlot+i/portsPerSlot, i%portsPerSlot)
	if i%portsPerSlot == 0 {
		s += ",multifunction=on"
	}
	return s
}

// option and options are a device's properties in order; the same list becomes
// a command line option or the arguments of a QMP command.
type option struct {
	key   string
	value any // string, int, bool, or []map[string]any for hostfwd
}

type options []option

// String is the command line form; the first option's key is implied.
func (o options) String() string {
	parts := make([]string, 0, len(o))
	for i, opt := range o {
		value := fmt.Sprint(opt.value)
		switch v := opt.value.(type) {
		case bool:
			value = "off"
			if v {
				value = "on"
			}
		case []string:
			for _, one := range v {
				parts = append(parts, opt.key+"="+quote(one))
			}
			continue
		}
		if i == 0 {
			parts = append(parts, quote(value))
			continue
		}
		parts = append(parts, opt.key+"="+quote(value))
	}
	return strings.Join(parts, ",")
}

// arguments is the QMP form.
func (o options) arguments() map[string]any {
	m := make(map[string]any, len(o))
	for _, opt := range o {
		if list, ok := opt.value.([]string); ok {
			items := make([]map[string]string, len(list))
			for i, s := range list {
				items[i] = map[string]string{"str": s}
			}
			m[opt.key] = items
			continue
		}
		m[opt.key] = opt.value
	}
	return m
}
