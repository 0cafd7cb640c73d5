// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/macvtap"
)

// Devices of the host's kernel.
const (
	tunDevice   = "/dev/net/tun"
	vhostDevice = "/dev/vhost-net"
)

// openTap opens the queues of a tap that exists. The VMM gets them open, so that it needs no privilege over the
// network. No queues asked for = one, of a tap without IFF_MULTI_QUEUE.
func openTap(name string, queues int) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	// Without this, opening would make a tap that goes with its last descriptor.
	if _, err := os.Stat("/sys/class/net/" + name); err != nil {
		return nil, machine.Wrap(machine.FailedPrecondition, err, "look for tap "+name)
	}
	if files, ok, err := macvtap.Open(name, queues); err != nil {
		return nil, machine.Wrap(machine.FailedPrecondition, err, "open tap "+name)
	} else if ok {
		return files, nil
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if queues > 0 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	for range max(queues, 1) {
		f, err := os.OpenFile(tunDevice, os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			return files, machine.Wrap(machine.FailedPrecondition, err, "open a tap")
		}
		files = append(files, f)
		if err := attachTap(f, name, flags); err != nil {
			return files, err
		}
	}
	return files, nil
}

func attachTap(f *os.File, name string, flags uint16) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return machine.Errorf(machine.Invalid, "tap device name %q", name)
	}
	request.SetUint16(flags)
	// Not f.Fd, which would make the descriptor a blocking one.
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("open tap %s: %w", name, err)
	}
	var failure error
	if err := raw.Control(func(fd uintptr) { failure = unix.IoctlIfreq(int(fd), unix.TUNSETIFF, request) }); err != nil {
		failure = err
	}
	switch {
	case errors.Is(failure, unix.EBUSY):
		return machine.Errorf(machine.FailedPrecondition, "tap %s is in use by another process", name)
	case errors.Is(failure, unix.EINVAL):
		return machine.Errorf(machine.FailedPrecondition, "%s is no tap, or was made for another number of queues", name)
	case failure != nil:
		return machine.Wrap(machine.FailedPrecondition, failure, "open tap "+name)
	}
	return nil
}

// openVhost opens the kernel's data path for that many queues; nil where there is none.
func openVhost(queues int) []*os.File {
	var files []*os.File
	for range max(queues, 1) {
		f, err := os.OpenFile(vhostDevice, os.O_RDWR, 0)
		if err != nil {
			closeAll(files)
			return nil
		}
		files = append(files, f)
	}
	return files
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// directFlag is the one for open(2) that goes past the page cache.
const directFlag = unix.O_DIRECT

func isUnsupported(err error) bool { return errors.Is(err, unix.EINVAL) }
