// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package macvtap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Open opens the queues of a macvtap, for a VMM; 0 = one. ok is false if the device is no macvtap.
func Open(name string, queues int) (files []*os.File, ok bool, err error) {
	nodes, err := filepath.Glob(filepath.Join("/sys/class/net", filepath.Base(name), kind, "tap*", "dev"))
	if err != nil || len(nodes) != 1 {
		return nil, false, err
	}
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			files = nil
		}
	}()
	raw, err := os.ReadFile(nodes[0])
	if err != nil {
		return nil, true, err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(strings.TrimSpace(string(raw)), "%d:%d", &major, &minor); err != nil {
		return nil, true, fmt.Errorf("read %s: %w", nodes[0], err)
	}
	device := unix.Mkdev(major, minor)
	for range max(queues, 1) {
		f, err := openNode("/dev/"+filepath.Base(filepath.Dir(nodes[0])), device)
		if err != nil {
			return files, true, fmt.Errorf("open macvtap %s: %w", name, err)
		}
		files = append(files, f)
	}
	return files, true, nil
}

// openNode opens the character device of a macvtap. Where nobody keeps /dev up to date, as in a container, or where it
// has the node of another network namespace, a node of one's own is made and removed again.
func openNode(path string, device uint64) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != device {
		dir, err := os.MkdirTemp("", "macvtap")
		if err != nil {
			return nil, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		path = filepath.Join(dir, "node")
		if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(device)); err != nil {
			return nil, fmt.Errorf("make its device node: %w", err)
		}
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	request, err := unix.NewIfreq("")
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
