// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"net/netip"
	"regexp"
	"runtime"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// nicBackend is the host's side of a network interface, nil for none. That of a tap lacks its descriptors.
func nicBackend(nic vmm.NIC) options {
	switch nic.Kind {
	case vmm.NICTap:
		return options{{"type", "tap"}, {"id", netdevPrefix + nic.ID}}
	case vmm.NICUser:
		o := options{{"type", "user"}, {"id", netdevPrefix + nic.ID}}
		var rules []string
		for _, f := range nic.Forwards {
			if rule, err := forwardRule(f); err == nil { // Validate refused the others
				rules = append(rules, rule)
			}
		}
		if len(rules) > 0 {
			o = append(o, option{"hostfwd", rules})
		}
		return o
	}
	return nil
}

// nicDevice is the guest's side of a network interface. It has no boot ROM:
// nothing is ever booted from the network.
func nicDevice(nic vmm.NIC, port string) options {
	if nic.Kind == vmm.NICPCI {
		return options{{"driver", "vfio-pci"}, {"id", nic.ID}, {"bus", port}, {"host", nic.PCI}, {"rombar", 0}}
	}
	o := options{
		{"driver", "virtio-net-pci"},
		{"id", nic.ID},
		{"bus", port},
		{"mac", nic.MAC},
		{"romfile", ""},
	}
	if nic.Kind != vmm.NICIsolated {
		o = append(o, option{"netdev", netdevPrefix + nic.ID})
	}
	if nic.MTU > 0 {
		o = append(o, option{"host_mtu", nic.MTU})
	}
	if nic.Kind == vmm.NICTap && nic.Queues > 1 {
		// A vector for each queue, one for changes of the configuration and one for the control queue.
		o = append(o, option{"mq", true}, option{"vectors", 2*nic.Queues + 2})
	}
	return o
}

// Limits of a network interface.
const (
	maxQueues = 128 // pairs; of 256 queues that tun has
	minMTU    = 68  // RFC 791
	maxMTU    = 65535
	maxTap    = 15 // bytes, IFNAMSIZ less the NUL
)

// pciAddress is a function in the notation of sysfs.
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

func validateNIC(nic vmm.NIC) error {
	switch {
	case !validID(nic.ID):
		return machine.Errorf(machine.Invalid, "device id %q is not possible", nic.ID)
	case nic.Kind != vmm.NICPCI && (len(nic.MAC) != len("00:00:00:00:00:00") || strings.Trim(nic.MAC, "0123456789abcdefABCDEF:") != ""):
		return machine.Errorf(machine.Invalid, "network interface %s: MAC address %q", nic.ID, nic.MAC)
	case len(nic.Forwards) > 0 && nic.Kind != vmm.NICUser:
		return machine.Errorf(machine.Invalid, "network interface %s: port forwards need user-mode networking", nic.ID)
	case nic.MTU != 0 && (nic.MTU < minMTU || nic.MTU > maxMTU):
		return machine.Errorf(machine.Invalid, "network interface %s: MTU %d, want %d to %d", nic.ID, nic.MTU, minMTU, maxMTU)
	case nic.Queues < 0 || nic.Queues > maxQueues:
		return machine.Errorf(machine.Invalid, "network interface %s: %d pairs of queues, at most %d are possible", nic.ID, nic.Queues, maxQueues)
	}
	switch nic.Kind {
	case vmm.NICIsolated:
	case vmm.NICTap:
		if runtime.GOOS != "linux" {
			return machine.Errorf(machine.Unimplemented, "network interface %s: tap devices exist on Linux only", nic.ID)
		}
		if nic.Tap == "" || len(nic.Tap) > maxTap || strings.ContainsAny(nic.Tap, "/ %") {
			return machine.Errorf(machine.Invalid, "network interface %s: tap device name %q", nic.ID, nic.Tap)
		}
	case vmm.NICPCI:
		if runtime.GOOS != "linux" {
			return machine.Errorf(machine.Unimplemented, "network interface %s: PCI functions can be given on Linux only", nic.ID)
		}
		if !pciAddress.MatchString(nic.PCI) {
			return machine.Errorf(machine.Invalid, "network interface %s: PCI address %q, want the form 0000:3b:02.1", nic.ID, nic.PCI)
		}
	case vmm.NICUser:
		for _, f := range nic.Forwards {
			if _, err := forwardRule(f); err != nil {
				return machine.Errorf(machine.Invalid, "network interface %s: %w", nic.ID, err)
			}
		}
	default:
		return machine.Errorf(machine.Unimplemented, "network interface %s: kind %q is not possible with QEMU", nic.ID, nic.Kind)
	}
	return nil
}

// forwardRule is the rule in the syntax of QEMU's hostfwd.
func forwardRule(f vmm.PortForward) (string, error) {
	address := f.HostAddress
	if address == "" {
		address = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(address)
	if err != nil || !ip.Is4() {
		return "", fmt.Errorf("host address %q is not an IPv4 address", f.HostAddress)
	}
	if f.HostPort < 0 || f.HostPort > 65535 || f.GuestPort < 1 || f.GuestPort > 65535 {
		return "", fmt.Errorf("forward of port %d to %d", f.HostPort, f.GuestPort)
	}
	return fmt.Sprintf("tcp:%s:%d-:%d", ip, f.HostPort, f.GuestPort), nil
}
