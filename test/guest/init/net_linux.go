// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/bits"
	"os"

	"golang.org/x/sys/unix"
)

// linkUp sets an interface administratively up.
func linkUp(name string) error {
	return withIfreq(name, func(fd int, req *unix.Ifreq) error {
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
			return err
		}
		req.SetUint16(req.Uint16() | unix.IFF_UP)
		return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
	})
}

// ipv4 returns the interface's first address with its prefix length.
func ipv4(name string) (string, error) {
	var addr, mask []byte
	err := withIfreq(name, func(fd int, req *unix.Ifreq) (err error) {
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFADDR, req); err != nil {
			return err
		}
		if addr, err = req.Inet4Addr(); err != nil {
			return err
		}
		addr = append([]byte(nil), addr...)
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFNETMASK, req); err != nil {
			return err
		}
		mask, err = req.Inet4Addr()
		return err
	})
	if err != nil {
		return "", err
	}
	ones := 0
	for _, b := range mask {
		ones += bits.OnesCount8(b)
	}
	return fmt.Sprintf("%d.%d.%d.%d/%d", addr[0], addr[1], addr[2], addr[3], ones), nil
}

func withIfreq(name string, do func(fd int, req *unix.Ifreq) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	return do(fd, req)
}

// configureNIC asks for an address in the background when the command line wants that.
func (g *guest) configureNIC(name string) {
	if !g.option("chp.dhcp") {
		return
	}
	go func() {
		addr, err := g.dhcp(name)
		if err != nil {
			g.say(fmt.Sprintf("guest: dhcp %s failed: %v", name, err))
			return
		}
		g.say(fmt.Sprintf("guest: dhcp %s ip=%s", name, addr))
	}()
}

func (g *guest) dhcp(name string) (string, error) {
	if err := linkUp(name); err != nil {
		return "", err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer null.Close()
	fd := null.Fd()
	argv := []string{busybox, "udhcpc", "-i", name, "-n", "-q", "-f", "-t", "8", "-T", "2", "-s", "/etc/udhcpc.sh"}
	done, err := g.reaper.start(argv, []string{"PATH=/bin:/sbin"}, []uintptr{fd, fd, fd}, nil)
	if err != nil {
		return "", err
	}
	if status := <-done; status.ExitStatus() != 0 {
		return "", fmt.Errorf("no lease, udhcpc status %d", status.ExitStatus())
	}
	return ipv4(name)
}
