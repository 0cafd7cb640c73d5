// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network/internal/rtnl"
)

// Kernel makes taps in the network namespace of the daemon. The zero value is ready for use.
type Kernel struct{}

var _ Host = Kernel{}

// Ensure makes the tap or finds it.
func (k Kernel) Ensure(ctx context.Context, s Spec) (Device, error) {
	if err := s.check(); err != nil {
		return Device{}, err
	}
	link, err := owned(ctx, s.Name, s.Owner)
	multi := s.Queues > 1
	if err == nil && !link.Carrier && !fits(link, s) {
		if err := k.Remove(ctx, s.Name, s.Owner); err != nil {
			return Device{}, err
		}
		err = fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err := add(ctx, s, multi); err != nil {
			return Device{}, err
		}
		link, err = rtnl.ByName(ctx, s.Name)
	}
	if err != nil {
		return Device{}, err
	}
	if err := configure(ctx, link, s); err != nil {
		return Device{}, err
	}
	if link, err = rtnl.ByName(ctx, s.Name); err != nil {
		return Device{}, err
	}
	return device(link), nil
}

// fits reports whether a tap can stay; what does not is fixed when a tap is made.
func fits(l rtnl.Link, s Spec) bool {
	uid := -1
	if s.UID != nil {
		uid = *s.UID
	}
	return l.Tun.MultiQueue == (s.Queues > 1) && l.Tun.VNetHeader && l.Tun.Owner == uid
}

// configure changes nothing about a tap that is as it should be, so that nobody is told of a change.
func configure(ctx context.Context, l rtnl.Link, s Spec) error {
	c, needed := rtnl.Change{}, false
	if l.Alias != s.Owner { // of a tap made by somebody who was killed before marking it
		c.Alias, needed = &s.Owner, true
	}
	if s.MTU != 0 && l.MTU != s.MTU {
		c.MTU, needed = s.MTU, true
	}
	if !l.Up {
		// Without IPv6 on it the host has no link-local address there, so the guest finds nobody to talk to.
		c.NoAddresses, needed = true, true
		up := true
		c.Up = &up
		disableIPv6(l.Name)
	}
	if !needed {
		return nil
	}
	err := rtnl.Set(ctx, l.Index, c)
	if errors.Is(err, unix.EAFNOSUPPORT) { // a kernel without IPv6
		c.NoAddresses = false
		err = rtnl.Set(ctx, l.Index, c)
	}
	return err
}

// disableIPv6 is the second lock beside NoAddresses; it is not there without IPv6, and not to be written in many
// containers.
func disableIPv6(name string) {
	_ = os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "disable_ipv6"), []byte("1"), 0o644)
}

// List returns the devices whose names could be Name's.
func (Kernel) List(ctx context.Context) ([]Device, error) {
	links, err := rtnl.Links(ctx)
	if err != nil {
		return nil, err
	}
	var out []Device
	for _, l := range links {
		if Named(l.Name) {
			out = append(out, device(l))
		}
	}
	return out, nil
}

// Remove removes the tap. One without a mark was left by a kill between making and marking; its name, made from the
// machine's id, is then the proof.
func (Kernel) Remove(ctx context.Context, name, owner string) error {
	link, err := owned(ctx, name, owner)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return rtnl.Delete(ctx, link.Index)
}

// owned returns the tap of that name; ErrNotOwner if it is no tap, or not the owner's.
func owned(ctx context.Context, name, owner string) (rtnl.Link, error) {
	link, err := rtnl.ByName(ctx, name)
	switch {
	case err != nil:
		return link, err
	case link.Alias != "" && link.Alias != owner:
		return link, fmt.Errorf("%w: %q", ErrNotOwner, link.Alias)
	case link.Kind != "tun" || !link.Tun.Tap:
		return link, fmt.Errorf("%w: it is no tap device", ErrNotOwner)
	}
	return link, nil
}

// add makes the tap. It is marked before it is made to outlive the descriptor, so that a kill in between leaves nothing.
func add(ctx context.Context, s Spec, multi bool) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/net/tun: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	req, err := unix.NewIfreq(s.Name)
	if err != nil {
		return err
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL)
	if multi {
		flags |= unix.IFF_MULTI_QUEUE
	}
	req.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return fmt.Errorf("make tap: %w", limited(err))
	}
	if s.UID != nil {
		if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, *s.UID); err != nil {
			return fmt.Errorf("set owner of tap: %w", err)
		}
	}
	link, err := rtnl.ByName(ctx, s.Name)
	if err != nil {
		return err
	}
	if err := rtnl.Set(ctx, link.Index, rtnl.Change{Alias: &s.Owner}); err != nil {
		return err
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("make tap persistent: %w", err)
	}
	return nil
}

func limited(err error) error {
	for _, full := range []error{unix.ENOSPC, unix.ENFILE, unix.EMFILE, unix.ENOMEM, unix.E2BIG, unix.EXFULL} {
		if errors.Is(err, full) {
			return fmt.Errorf("%w: %w", ErrLimit, err)
		}
	}
	return err
}

func device(l rtnl.Link) Device {
	return Device{
		Index: l.Index, Name: l.Name, Owner: l.Alias, MultiQueue: l.Tun.MultiQueue, MTU: l.MTU, Master: l.Master, Up: l.Up,
		InUse: l.Carrier,
	}
}
