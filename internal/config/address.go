// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

const (
	// MaxSocketPath is what sun_path of unix(7) holds beside its final zero, in bytes.
	MaxSocketPath = 107
	// MachineSocketRoom is what a machine's sockets need behind runtimeDir, in bytes:
	// "/vmm/", an id of 36, a slash, and a name of at most 14.
	MachineSocketRoom = 56
)

// socketPath checks a path that a Unix socket is bound to.
func socketPath(path string) error {
	if err := absolute(path); err != nil {
		return err
	}
	if len(path) > MaxSocketPath {
		return badValue("use a shorter path", "the path has %d bytes, but a Unix socket's may have %d", len(path), MaxSocketPath)
	}
	return nil
}

// runtimeDir leaves room for the sockets of machines.
func runtimeDir(path string) error {
	if err := absolute(path); err != nil {
		return err
	}
	if longest := MaxSocketPath - MachineSocketRoom; len(path) > longest {
		return badValue("use a shorter path", "the path has %d bytes, but the sockets below it leave it only %d", len(path), longest)
	}
	return nil
}

var groupForm = regexp.MustCompile(`^([a-zA-Z_][a-zA-Z0-9_.-]{0,30}\$?|[0-9]{1,10})$`)

// group checks the form only: whether the group exists is known on the host that serves.
func group(s string) error {
	if s == "" || groupForm.MatchString(s) {
		if _, err := strconv.ParseUint(s, 10, 32); err == nil || s == "" || s[0] > '9' {
			return nil
		}
	}
	return badValue("", "%q is neither a group name nor a group number", s)
}

// openAddress takes a port alone for every interface, IPv4 and IPv6: for what anybody may ask.
func openAddress(s string) error {
	if port, ok := strings.CutPrefix(s, ":"); ok {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil {
			return nil
		}
	}
	return listenAddress(s)
}

// listenAddress refuses to open a port on every interface by an omission.
func listenAddress(s string) error {
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return badValue("", "%q is not of the form host:port", s)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return badValue("", "%q has no port between 0 and 65535", s)
	}
	if host == "" {
		return badValue(fmt.Sprintf("write 127.0.0.1:%s, or 0.0.0.0:%s or [::]:%s to serve every interface", port, port, port),
			"%q names no host", s)
	}
	if host == "localhost" {
		return nil
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return badValue("", "%q is neither an IP address nor localhost", host)
	}
	return nil
}

// baseURL checks what a path can be added to.
func baseURL(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return badValue("write http://"+strings.TrimLeft(s, "/"), "%q is not an http or https URL", s)
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return badValue("", "%q has more than scheme, host and path", s)
	}
	return nil
}

var hostForm = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,252}[a-zA-Z0-9])?$`)

// registry checks a registry's name as it stands at the front of an image reference.
func registry(s string) error {
	if _, rest, ok := strings.Cut(s, "://"); ok {
		host, _, _ := strings.Cut(rest, "/")
		return badValue("write "+host, "%q is a URL, want host or host:port", s)
	}
	host := s
	if h, port, err := net.SplitHostPort(s); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return badValue("", "%q has no port between 0 and 65535", s)
		}
		if _, err := netip.ParseAddr(h); err == nil {
			return nil
		}
		host = h
	}
	if !hostForm.MatchString(host) {
		return badValue("", "%q is not a registry's host or host:port", s)
	}
	return nil
}

// ParseForward reads "[host address]:port-[guest address]:port", the form of QEMU's hostfwd option
// without its protocol, which is always TCP. The host address is needed, so that no port is opened to
// the world by an omission; an empty guest address is the guest's first one.
func ParseForward(s string) (Forward, error) {
	const form = "write 127.0.0.1:2222-:22"
	if kind, rest, ok := strings.Cut(s, ":"); ok && (kind == "tcp" || kind == "udp") {
		if kind == "udp" {
			return Forward{}, badValue("", "%q forwards UDP, but only TCP is supported", s)
		}
		return Forward{}, badValue("write "+rest, "%q names a protocol, but it is always TCP", s)
	}
	hostText, guestText, ok := strings.Cut(s, "-")
	if !ok {
		return Forward{}, badValue(form, "%q is not of the form host:port-guest:port", s)
	}
	host, hostPort, err := endpoint(hostText)
	if err != nil {
		return Forward{}, badValue(form, "%q: the host's side %v", s, err)
	}
	if !host.IsValid() {
		return Forward{}, badValue("write 127.0.0.1"+s+", or 0.0.0.0"+s+" to serve every interface", "%q names no host address", s)
	}
	guest, guestPort, err := endpoint(guestText)
	if err != nil {
		return Forward{}, badValue(form, "%q: the guest's side %v", s, err)
	}
	return Forward{HostAddress: host, HostPort: hostPort, GuestAddress: guest, GuestPort: guestPort}, nil
}

func endpoint(s string) (netip.Addr, uint16, error) {
	host, portText, err := net.SplitHostPort(s)
	if err != nil {
		return netip.Addr{}, 0, fmt.Errorf("%q is not of the form address:port", s)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 {
		return netip.Addr{}, 0, fmt.Errorf("%q has no port between 1 and 65535", s)
	}
	if host == "" {
		return netip.Addr{}, uint16(port), nil
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || !addr.Is4() { // QEMU's user network forwards IPv4 only
		return netip.Addr{}, 0, fmt.Errorf("%q has no IPv4 address", s)
	}
	return addr, uint16(port), nil
}

// String renders the form that ParseForward reads.
func (f Forward) String() string {
	side := func(a netip.Addr, port uint16) string {
		host := ""
		if a.IsValid() {
			host = a.String()
		}
		return net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	return side(f.HostAddress, f.HostPort) + "-" + side(f.GuestAddress, f.GuestPort)
}
