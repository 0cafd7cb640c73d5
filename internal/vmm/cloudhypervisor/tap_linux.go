// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network/macvtap"
)

const tunDevice = "/dev/net/tun"

// openTap opens a tap of this network namespace once for each pair of queues. It never makes one: that the kernel does
// when asked for a name that does not exist, and such a tap does not stay.
func openTap(name string, queues int) (files []*os.File, err error) {
	if exists, err := interfaceExists(name); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTapByName, err)
	} else if !exists {
		return nil, ErrNoTap
	}
	if files, ok, err := macvtap.Open(name, queues); ok || err != nil {
		return files, err
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if queues > 0 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	defer func() {
		if err != nil {
			plug{taps: files}.close()
			files = nil
		}
	}()
	for range max(queues, 1) {
		f, err := openQueue(name, flags)
		if f != nil {
			files = append(files, f)
		}
		if err != nil {
			return files, err
		}
	}
	return files, nil
}

func openQueue(name string, flags uint16) (*os.File, error) {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: open %s: %w", ErrTapByName, tunDevice, err)
	}
	f := os.NewFile(uintptr(fd), tunDevice)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return f, err
	}
	request.SetUint16(flags)
	switch err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); {
	case errors.Is(err, unix.EPERM):
		return f, fmt.Errorf("%w: attach to it: %w", ErrTapByName, err)
	case errors.Is(err, unix.EINVAL):
		return f, fmt.Errorf("attach to it: it has one queue where several are wanted or the other way round: %w", err)
	case err != nil:
		return f, fmt.Errorf("attach to it: %w", err)
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, request); err != nil {
		return f, fmt.Errorf("ask for its flags: %w", err)
	}
	if request.Uint16()&unix.IFF_PERSIST == 0 {
		return f, ErrNoTap // it was removed just now and came back by our asking
	}
	return f, nil
}

// detachQueues takes queues away from their tap, whoever else has them open. A tap with one queue cannot be freed so.
func detachQueues(taps []*os.File) {
	for _, f := range taps {
		raw, err := f.SyscallConn()
		if err != nil {
			continue
		}
		_ = raw.Control(func(fd uintptr) {
			if request, err := unix.NewIfreq(""); err == nil {
				request.SetUint16(unix.IFF_DETACH_QUEUE)
				_ = unix.IoctlIfreq(int(fd), unix.TUNSETQUEUE, request) // EINVAL: there is but one
			}
		})
	}
}

// tapBehind tells which tap a descriptor of another process leads to: "" for one that is gone. It is not known when
// this process may not look or the descriptor is no tap's.
func tapBehind(pid, fd int) (name string, known bool) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
	if err != nil {
		return "", false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "iff:"); ok {
			return strings.TrimSpace(name), true
		}
	}
	return "", false
}

// directAlignment tells how large unbuffered requests to a file must be, as the VMM finds out; not known for a block
// device, and where the kernel (before 6.1) or the filesystem does not tell, when the VMM takes sectors of 512 bytes.
func directAlignment(path string) (bytes int64, known bool) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_DIRECT|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, false
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN|unix.STATX_TYPE, &st); err != nil {
		return 0, false
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mask&unix.STATX_DIOALIGN == 0 || st.Dio_mem_align == 0 {
		return 0, false
	}
	return int64(max(st.Dio_mem_align, st.Dio_offset_align)), true
}
