// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package macvtap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/internal/rtnl"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
)

// kind is what the kernel calls such a device.
const kind = "macvtap"

// Connect returns the tap that a VMM can open to be at the device lower: lower itself if it is a persistent tap, which
// waits for a VMM to open it, else a macvtap on top of it, whose address has to be the guest's. Idempotent. ErrNoDevice
// if lower does not exist, ErrNotOwner if something of somebody else is in the way.
func (Kernel) Connect(ctx context.Context, lower, scheme string, ref network.Ref, mac string) (string, error) {
	below, err := rtnl.ByName(ctx, lower)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%w: %s", ErrNoDevice, lower)
	case err != nil:
		return "", err
	case below.Kind == "tun" && below.Tun.Tap && below.Tun.Persistent:
		return lower, nil
	}
	address, err := net.ParseMAC(mac)
	if err != nil {
		return "", err
	}
	name, mark := tap.Name(ref.MachineID, ref.Name), owner(scheme, ref)
	have, err := owned(ctx, name, mark)
	if err == nil && (have.Lower != below.Index || !bytes.Equal(have.MAC, address)) {
		if err := rtnl.Delete(ctx, have.Index); err != nil {
			return "", err
		}
		err = fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err := rtnl.AddMacvtap(ctx, name, below.Index, address); err != nil {
			return "", err
		}
		have, err = rtnl.ByName(ctx, name)
	}
	if err != nil {
		return "", err
	}
	return name, configure(ctx, have, mark)
}

// configure marks the device, and sets it up without any address of the host.
func configure(ctx context.Context, l rtnl.Link, mark string) error {
	if l.Alias != mark {
		if err := rtnl.Set(ctx, l.Index, rtnl.Change{Alias: &mark}); err != nil {
			return err
		}
	}
	if l.Up {
		return nil
	}
	// It is not there without IPv6, and not to be written in many containers.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+l.Name+"/disable_ipv6", []byte("1"), 0o644)
	up := true
	err := rtnl.Set(ctx, l.Index, rtnl.Change{NoAddresses: true, Up: &up})
	if errors.Is(err, unix.EAFNOSUPPORT) { // a kernel without IPv6
		err = rtnl.Set(ctx, l.Index, rtnl.Change{Up: &up})
	}
	if err != nil {
		return fmt.Errorf("set %s up: %w", l.Name, err)
	}
	return nil
}

// Find returns the tap that Connect made for an interface, or lower if it made none.
func (Kernel) Find(ctx context.Context, lower, scheme string, ref network.Ref) string {
	name := tap.Name(ref.MachineID, ref.Name)
	if _, err := owned(ctx, name, owner(scheme, ref)); err != nil {
		return lower
	}
	return name
}

// Disconnect removes what Connect made for an interface; nil if that is nothing.
func (Kernel) Disconnect(ctx context.Context, scheme string, ref network.Ref) error {
	have, err := owned(ctx, tap.Name(ref.MachineID, ref.Name), owner(scheme, ref))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotOwner) {
		return nil
	}
	if err != nil {
		return err
	}
	return rtnl.Delete(ctx, have.Index)
}

// owned returns the macvtap of that name. One without a mark was left by a kill between making and marking.
func owned(ctx context.Context, name, mark string) (rtnl.Link, error) {
	l, err := rtnl.ByName(ctx, name)
	switch {
	case err != nil:
		return l, err
	case l.Alias != "" && l.Alias != mark:
		return l, fmt.Errorf("%w: %s is %q", ErrNotOwner, name, l.Alias)
	case l.Kind != kind:
		return l, fmt.Errorf("%w: %s is no macvtap", ErrNotOwner, name)
	}
	return l, nil
}
