// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package isolated

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// HostTaps makes taps in the network namespace of the daemon; it needs CAP_NET_ADMIN. The owner is kept in the
// device's alias, where "ip link" shows it.
type HostTaps struct {
	sys, proc string
}

// NewHostTaps makes a HostTaps.
func NewHostTaps() *HostTaps {
	return &HostTaps{sys: "/sys/class/net", proc: "/proc/sys/net/ipv6/conf"}
}

var _ Taps = (*HostTaps)(nil)

// Ensure makes the tap or finds it.
func (h *HostTaps) Ensure(_ context.Context, name, owner string) error {
	switch alias, err := h.alias(name); {
	case errors.Is(err, fs.ErrNotExist):
		if err := setPersistent(name, true); err != nil {
			return err
		}
	case err != nil:
		return err
	case alias != "" && alias != owner:
		return fmt.Errorf("%w: %q", ErrNotOwner, alias)
	}
	if err := os.WriteFile(filepath.Join(h.sys, name, "ifalias"), []byte(owner), 0o644); err != nil {
		return fmt.Errorf("mark the device: %w", err)
	}
	// Without IPv6 on it the host has no link-local address there, so the guest finds nobody to talk to.
	err := os.WriteFile(filepath.Join(h.proc, name, "disable_ipv6"), []byte("1"), 0o644)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("disable IPv6: %w", err)
	}
	return setUp(name)
}

// List reads the alias of each device whose name begins as a tap's does.
func (h *HostTaps) List(context.Context) (map[string]string, error) {
	entries, err := os.ReadDir(h.sys)
	if err != nil {
		return nil, err
	}
	owners := map[string]string{}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tapPrefix) {
			continue
		}
		switch alias, err := h.alias(e.Name()); {
		case errors.Is(err, fs.ErrNotExist): // gone meanwhile
		case err != nil:
			return nil, err
		default:
			owners[e.Name()] = alias
		}
	}
	return owners, nil
}

// Remove removes the tap. One without a mark was left by a kill between making and marking; its name, made from the
// machine's id, is then the proof.
func (h *HostTaps) Remove(_ context.Context, name, owner string) error {
	switch alias, err := h.alias(name); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case alias != "" && alias != owner:
		return fmt.Errorf("%w: %q", ErrNotOwner, alias)
	}
	return setPersistent(name, false)
}

func (h *HostTaps) alias(name string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(h.sys, name, "ifalias"))
	if err != nil {
		return "", err
	}
	return string(trimNewline(raw)), nil
}

func trimNewline(raw []byte) []byte {
	for len(raw) > 0 && raw[len(raw)-1] == '\n' {
		raw = raw[:len(raw)-1]
	}
	return raw
}

// setPersistent makes the tap (and keeps it when the descriptor is closed) or lets it go.
func setPersistent(name string, keep bool) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/net/tun: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return fmt.Errorf("attach to tap: %w", err)
	}
	value := 0
	if keep {
		value = 1
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, value); err != nil {
		return fmt.Errorf("set tap persistence: %w", err)
	}
	return nil
}

func setUp(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open control socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return fmt.Errorf("read device flags: %w", err)
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("set the device up: %w", err)
	}
	return nil
}
