// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// Limits of what is taken over from a guest; what is beyond is left out.
const (
	maxInterfaces = 64
	maxAddresses  = 64 // of one interface
	maxName       = 64 // bytes of names and versions
	maxText       = 256
)

// Mode is how a guest goes down.
type Mode string

// The modes, as the agent spells them. How a halted guest looks from outside is up to the guest's kernel; it may stay
// on.
const (
	PowerDown Mode = "powerdown"
	Reboot    Mode = "reboot"
	Halt      Mode = "halt"
)

// Interface is a network interface as the guest sees it.
type Interface struct {
	Name      string
	MAC       string // lower case, empty if it has none
	Addresses []netip.Prefix
}

// OSInfo is what the guest says of its operating system. Every field may be empty. Text is printable and short.
type OSInfo struct {
	ID            string // "debian"
	Name          string // "Debian GNU/Linux"
	PrettyName    string // "Debian GNU/Linux 12 (bookworm)"
	Version       string
	VersionID     string // "12"
	KernelRelease string // as uname -r
	KernelVersion string // as uname -v
	Machine       string // as uname -m
}

// Ping succeeds when the agent answers.
func (c *Client) Ping(ctx context.Context) error { return c.call(ctx, "guest-ping", nil) }

// Shutdown tells the guest to go down. An agent that obeys does not answer, so success means that the agent was there,
// was told, and did not refuse within ShutdownWait; the guest's end is seen by the VMM. A shutdown program that fails
// is a Refusal.
func (c *Client) Shutdown(ctx context.Context, mode Mode) error {
	const command = "guest-shutdown"
	if mode != PowerDown && mode != Reboot && mode != Halt {
		return machine.InvalidField("mode", "%q is not known", mode)
	}
	return c.session(ctx, command, func(own context.Context, s *stream) error {
		if err := s.send(command, map[string]Mode{"mode": mode}); err != nil {
			return failed(ctx, own, command, ErrProtocol, err)
		}
		refusal := make(chan error, 1)
		go func() {
			answer, err := s.answer()
			if err == nil && answer.Error != nil {
				err = refused(command, answer.Error.Class, answer.Error.Desc)
			}
			refusal <- err
		}()
		timer := time.NewTimer(c.opts.ShutdownWait)
		defer timer.Stop()
		select {
		case err := <-refusal:
			// All but a refusal is the connection's end, which is what a guest that goes down leaves.
			if r := (*Refusal)(nil); errors.As(err, &r) {
				return err
			}
		case <-timer.C:
		}
		return nil
	})
}

// Interfaces lists the guest's network interfaces, lo among them, in the guest's order.
func (c *Client) Interfaces(ctx context.Context) ([]Interface, error) {
	var list []struct {
		Name      string `json:"name"`
		MAC       string `json:"hardware-address"`
		Addresses []struct {
			Address string `json:"ip-address"`
			Prefix  int    `json:"prefix"`
		} `json:"ip-addresses"`
	}
	if err := c.call(ctx, "guest-network-get-interfaces", &list); err != nil {
		return nil, err
	}
	out := make([]Interface, 0, min(len(list), maxInterfaces))
	for _, item := range list[:min(len(list), maxInterfaces)] {
		i := Interface{Name: printable(item.Name, maxName), MAC: strings.ToLower(printable(item.MAC, maxName))}
		for _, a := range item.Addresses {
			ip, err := netip.ParseAddr(a.Address)
			if err != nil || a.Prefix < 0 || a.Prefix > ip.BitLen() || len(i.Addresses) == maxAddresses {
				continue
			}
			// A zone is the guest's own name of the interface, which the entry has already.
			i.Addresses = append(i.Addresses, netip.PrefixFrom(ip.WithZone(""), a.Prefix))
		}
		out = append(out, i)
	}
	return out, nil
}

// OSInfo asks for the guest's operating system.
func (c *Client) OSInfo(ctx context.Context) (OSInfo, error) {
	var info struct {
		ID            string `json:"id"`
		Name          string `json:"name"`
		PrettyName    string `json:"pretty-name"`
		Version       string `json:"version"`
		VersionID     string `json:"version-id"`
		KernelRelease string `json:"kernel-release"`
		KernelVersion string `json:"kernel-version"`
		Machine       string `json:"machine"`
	}
	if err := c.call(ctx, "guest-get-osinfo", &info); err != nil {
		return OSInfo{}, err
	}
	return OSInfo{
		ID: printable(info.ID, maxName), Name: printable(info.Name, maxName),
		PrettyName: printable(info.PrettyName, maxText),
		Version:    printable(info.Version, maxName), VersionID: printable(info.VersionID, maxName),
		KernelRelease: printable(info.KernelRelease, maxName), KernelVersion: printable(info.KernelVersion, maxText),
		Machine: printable(info.Machine, maxName),
	}, nil
}

// HostName asks for the guest's host name.
func (c *Client) HostName(ctx context.Context) (string, error) {
	const command = "guest-get-host-name"
	var answer struct {
		Name *string `json:"host-name"`
	}
	if err := c.call(ctx, command, &answer); err != nil {
		return "", err
	}
	if answer.Name == nil {
		return "", machine.Wrap(machine.Unavailable, fmt.Errorf("%w: no host name in the answer", ErrProtocol), command)
	}
	return printable(*answer.Name, maxText), nil
}

// printable makes text of a guest fit for logs, terminals and labels: what is not printable becomes a question mark,
// what is beyond most bytes is cut off.
func printable(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}
