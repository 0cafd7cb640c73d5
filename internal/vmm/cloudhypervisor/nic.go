// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

const (
	pciDevices = "/sys/bus/pci/devices"
	vfioDir    = "/dev/vfio"
	// minMTU and maxMTU are those of a tap.
	minMTU, maxMTU = 68, 65535
)

// interfaceName is stricter than the kernel, and than the option parser of the VMM needs.
var interfaceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$`)

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]$`)

// ErrTapByName says that this process may not open a tap, so that the VMM, which may have the right, shall.
var ErrTapByName = errors.New("taps cannot be opened here")

// ErrNoTap says that there is no such tap. The VMM would make one of that name that leads nowhere.
var ErrNoTap = errors.New("there is no tap of that name")

func validateNIC(field string, nic vmm.NIC, cpus int64, seen map[string]bool) error {
	switch nic.Kind {
	case vmm.NICTap:
		if err := validateTap(field, nic, cpus); err != nil {
			return err
		}
	case vmm.NICPCI:
		if !pciAddress.MatchString(nic.PCI) {
			return machine.InvalidField(field+".pci", "%q is no address of a PCI function", nic.PCI)
		}
	case vmm.NICIsolated, vmm.NICUser:
		return machine.Errorf(machine.Unimplemented, "%s: Cloud Hypervisor has no network interface of kind %q; it needs a tap device", field, nic.Kind)
	default:
		return machine.InvalidField(field+".kind", "%q is not known", nic.Kind)
	}
	return validateID(field, nic.ID, nics, seen)
}

func validateTap(field string, nic vmm.NIC, cpus int64) error {
	switch {
	case !interfaceName.MatchString(nic.Tap):
		return machine.InvalidField(field+".tap", "%q is no name of a network interface", nic.Tap)
	case nic.MAC == "":
		return machine.InvalidField(field+".mac", "must not be empty")
	case nic.Queues < 0 || int64(nic.Queues) > cpus:
		return machine.InvalidField(field+".queues", "are %d pairs, at most one for each of the %d CPUs is possible", nic.Queues, cpus)
	case nic.MTU != 0 && (nic.MTU < minMTU || nic.MTU > maxMTU):
		return machine.InvalidField(field+".mtu", "is %d, must be %d to %d", nic.MTU, minMTU, maxMTU)
	}
	return nil
}

// validateFunctions refuses to give a machine one PCI function twice.
func validateFunctions(all []vmm.NIC) error {
	seen := map[string]bool{}
	for _, nic := range all {
		if nic.Kind == vmm.NICPCI && seen[nic.PCI] {
			return machine.InvalidField("nics", "two have the PCI function %s", nic.PCI)
		}
		seen[nic.PCI] = true
	}
	return nil
}

// netOf is the interface as the VMM is told, with its tap by name. There is no MTU and no host MAC in it: setting them
// needs a privilege that a tap which is up already does not, and the guest is told the MTU that the tap has.
func netOf(nic vmm.NIC) api.Net {
	return api.Net{ID: nic.ID, Tap: nic.Tap, MAC: nic.MAC, NumQueues: 2 * max(nic.Queues, 1)}
}

func functionOf(nic vmm.NIC) api.Device {
	return api.Device{ID: nic.ID, Path: filepath.Join(pciDevices, nic.PCI)}
}

// plug is a network interface ready to be plugged in: with its tap open, or to be opened by the VMM.
type plug struct {
	nic  vmm.NIC
	taps []*os.File // empty: by name
}

func (p plug) close() {
	for _, f := range p.taps {
		_ = f.Close()
	}
}

// interfaceExists asks the kernel; an error is that it cannot be asked.
func interfaceExists(name string) (bool, error) {
	all, err := net.Interfaces()
	if err != nil {
		return false, err
	}
	for _, i := range all {
		if i.Name == name {
			return true, nil
		}
	}
	return false, nil
}

// openPlug opens the tap of an interface.
func (d *Driver) openPlug(nic vmm.NIC) (plug, error) {
	if nic.Kind != vmm.NICTap {
		return plug{nic: nic}, nil
	}
	// The guest is told the MTU that the tap has. One that cannot be looked at is the VMM's to find.
	if i, err := net.InterfaceByName(nic.Tap); err == nil && nic.MTU != 0 && i.MTU != nic.MTU {
		return plug{}, machine.Errorf(machine.FailedPrecondition, "the tap %s has an MTU of %d, not the %d that the guest is to be told", nic.Tap, i.MTU, nic.MTU)
	}
	taps, err := d.opts.OpenTap(nic.Tap, nic.Queues)
	switch {
	case errors.Is(err, ErrTapByName):
		d.log.Debug("tap is opened by the VMM", "tap", nic.Tap, "reason", err)
		return plug{nic: nic}, nil
	case err != nil:
		return plug{}, machine.Wrap(machine.FailedPrecondition, err, "open tap "+nic.Tap)
	}
	return plug{nic: nic, taps: taps}, nil
}

// addNIC gives the VMM an interface. The VMM keeps the descriptors of one that it refuses until it ends.
func (v *conn) addNIC(ctx context.Context, p plug) error {
	if p.nic.Kind == vmm.NICPCI {
		_, err := v.client.AddDevice(ctx, functionOf(p.nic))
		return err
	}
	def := netOf(p.nic)
	if len(p.taps) == 0 {
		_, err := v.client.AddNet(ctx, def)
		return err
	}
	def.Tap = ""
	_, err := v.client.AddNet(ctx, def, p.taps...)
	var refused *api.Error
	if errors.As(err, &refused) {
		detachQueues(p.taps)
	}
	return err
}
