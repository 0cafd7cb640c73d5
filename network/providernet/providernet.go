// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package providernet connects network interfaces to bridges of the host: those that are there already, and those that
// it makes itself with an address, NAT and DHCP ("managed"). It exists so that a host is useful with nothing but a bridge
// or not even that. It must never change a bridge that it did not make, nor a device that does not bear its mark, and
// never give a guest a way to the host beyond what a network's configuration says.
//
// What it decided (which interface is where, with which address) is kept in one small file per network, written before
// the host is changed. Everything else is read from the kernel. While Events is followed, it also answers DHCP, and puts
// ports back when a bridge was gone for a while.
package providernet

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
)

// Name is the plugin's name in configuration and records.
const Name = "providernet"

// Options is what the plugin is made of.
type Options struct {
	// Networks are what a network_id can name.
	Networks map[string]Network
	// AllowBridges are patterns (path.Match) of bridges that a network_id can name beside.
	AllowBridges []string
	// Dir keeps the networks' files; made when needed. It has to outlive a reboot.
	Dir string
	// UID is the user that the VMMs run as; nil = the daemon's.
	UID *int
	// MaxPorts is how many ports a bridge may have, whoever made them; default 1000. The kernel's limit is 1023.
	MaxPorts int
	// LeaseTime is how long a DHCP lease is good for; default 1 h, at least 1 min.
	LeaseTime time.Duration
	// Nft is the program that sets the rules of managed networks; default "nft", looked up in PATH.
	Nft string
	// Taps is where taps are made; default tap.Kernel.
	Taps   tap.Host
	Logger *slog.Logger
}

// Network is one that interfaces can be connected to.
type Network struct {
	// Bridge is the device's name. Of a managed network it may be empty: "chp-" and the network's name then, shortened
	// if need be.
	Bridge string `json:"bridge"`
	MTU    int    `json:"mtu,omitempty"` // of the guests' interfaces; 0 = the bridge's, of a managed one 1500
	// Isolated keeps the guests from each other: they reach only ports that are not isolated, such as an uplink.
	Isolated bool `json:"isolated,omitempty"`
	// Managed says that the bridge is to be made and what it offers; nil = it is there already.
	Managed *Managed `json:"managed,omitempty"`
}

// Managed is a network that exists on this host only.
type Managed struct {
	Subnet  netip.Prefix `json:"subnet"`        // IPv4, /8 to /30
	Gateway netip.Addr   `json:"gateway"`       // the host's address; not valid = the subnet's first
	NAT     bool         `json:"nat,omitempty"` // lets the guests out by the host's addresses
	DNS     []netip.Addr `json:"dns,omitempty"` // told by DHCP
	DHCP    bool         `json:"dhcp,omitempty"`
}

// Plugin implements network.Plugin.
type Plugin struct {
	o    Options
	log  *slog.Logger
	taps tap.Host
	hub  hub

	mu       sync.Mutex // guards segments, not what is in them
	segments map[string]*segment
}

var _ network.Plugin = (*Plugin)(nil)

const (
	defaultMaxPorts  = 1000
	defaultLeaseTime = time.Hour
	defaultMTU       = 1500
	maxDevice        = 15 // bytes of a device's name
)

// New makes the plugin and reads its files; it changes nothing on the host. A file that cannot be understood is put
// aside and told.
func New(o Options) (*Plugin, error) {
	if o.Dir == "" {
		return nil, errors.New("network plugin providernet: Dir is needed")
	}
	o.MaxPorts = cmp.Or(o.MaxPorts, defaultMaxPorts)
	o.LeaseTime = max(cmp.Or(o.LeaseTime, defaultLeaseTime), time.Minute)
	o.Nft = cmp.Or(o.Nft, "nft")
	if o.Taps == nil {
		o.Taps = tap.Kernel{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Plugin{o: o, log: o.Logger.With("plugin", Name), taps: o.Taps, segments: map[string]*segment{}}
	bridges := map[string]string{}
	for name, n := range o.Networks {
		if err := n.complete(name); err != nil {
			return nil, fmt.Errorf("network plugin providernet: network %s: %w", name, err)
		}
		if other, twice := bridges[n.Bridge]; twice && (n.Managed != nil || o.Networks[other].Managed != nil) {
			return nil, fmt.Errorf("network plugin providernet: networks %s and %s have the bridge %s, and one is managed", name, other, n.Bridge)
		}
		bridges[n.Bridge] = name
		p.segments[name] = newSegment(p, name, n, true)
	}
	for _, pattern := range o.AllowBridges {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, fmt.Errorf("network plugin providernet: pattern %q: %w", pattern, err)
		}
	}
	if err := p.load(); err != nil {
		return nil, fmt.Errorf("network plugin providernet: %w", err)
	}
	return p, nil
}

// Name returns "providernet".
func (p *Plugin) Name() string { return Name }

var networkName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// complete fills in what was left open and refuses what cannot be.
func (n *Network) complete(name string) error {
	if !networkName.MatchString(name) {
		return errors.New("the name has to be of 1 to 63 small letters, digits, dots and hyphens")
	}
	if n.Bridge == "" && n.Managed != nil {
		n.Bridge = BridgeName(name)
	}
	if !deviceName(n.Bridge) {
		return fmt.Errorf("bridge %q is no name of a network device", n.Bridge)
	}
	if n.MTU != 0 && (n.MTU < tap.MinMTU || n.MTU > tap.MaxMTU) {
		return fmt.Errorf("MTU %d is not between %d and %d", n.MTU, tap.MinMTU, tap.MaxMTU)
	}
	if n.Managed == nil {
		return nil
	}
	n.MTU = cmp.Or(n.MTU, defaultMTU)
	return n.Managed.complete(n)
}

// complete works on a copy: what it was given belongs to the caller.
func (m Managed) complete(n *Network) error {
	subnet := m.Subnet
	switch {
	case !subnet.IsValid() || !subnet.Addr().Is4() || subnet.Bits() < 8 || subnet.Bits() > 30:
		return fmt.Errorf("subnet %s is none of IPv4 between /8 and /30", subnet)
	case subnet.Masked() != subnet:
		return fmt.Errorf("subnet %s has bits behind its mask; %s is meant", subnet, subnet.Masked())
	}
	if !m.Gateway.IsValid() {
		m.Gateway = subnet.Addr().Next()
	}
	if !usable(subnet, m.Gateway) {
		return fmt.Errorf("gateway %s is no address for a host in %s", m.Gateway, subnet)
	}
	for _, d := range m.DNS {
		if !d.Is4() {
			return fmt.Errorf("name server %s is not of IPv4", d)
		}
	}
	n.Managed = &m
	return nil
}

// BridgeName is the bridge of a managed network that names none: "chp-" and the network's name, or a hash of it if that
// is too long.
func BridgeName(network string) string {
	if name := "chp-" + network; len(name) <= maxDevice {
		return name
	}
	sum := sha256.Sum256([]byte("bridge\x00" + network))
	return "chp-" + hex.EncodeToString(sum[:])[:10]
}

func deviceName(s string) bool {
	return s != "" && len(s) <= maxDevice && s != "." && s != ".." && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || r == '/' || r == ':' || r == '"' || r == '\\'
	})
}

// usable reports whether a host can have the address: it is neither the network's own nor its broadcast.
func usable(subnet netip.Prefix, ip netip.Addr) bool {
	return ip.Is4() && subnet.Contains(ip) && ip != subnet.Masked().Addr() && ip != broadcast(subnet)
}

func broadcast(subnet netip.Prefix) netip.Addr {
	b := subnet.Masked().Addr().As4()
	for i := subnet.Bits(); i < 32; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom4(b)
}

const bridgeKey = "bridge@" // before the name of a bridge that was named directly; no network's name has it

// resolve returns the segment's key and definition for a network_id.
func (p *Plugin) resolve(id string) (key string, n Network, message string) {
	if key, n, ok := p.configured(id); ok {
		return key, n, ""
	}
	switch {
	case id == "":
		return "", n, "is empty; name a network of network.providernet.networks"
	case strings.Contains(id, "://"):
		return "", n, "is a URL, want the name of a network; a URL belongs to another network plugin"
	case !networkName.MatchString(id) && !deviceName(id):
		return "", n, "is neither the name of a network nor of a bridge"
	case deviceName(id) && len(p.o.AllowBridges) > 0:
		return "", n, "is no network of network.providernet.networks, nor a bridge that network.providernet.allowBridges allows"
	default:
		return "", n, "is no network of network.providernet.networks"
	}
}

func (p *Plugin) configured(id string) (key string, n Network, ok bool) {
	p.mu.Lock()
	seg := p.segments[id]
	p.mu.Unlock()
	if seg != nil && seg.configured {
		return id, seg.network, true
	}
	if !deviceName(id) || tap.Named(id) {
		return "", n, false
	}
	for _, pattern := range p.o.AllowBridges {
		if match, _ := path.Match(pattern, id); match {
			return bridgeKey + id, Network{Bridge: id}, true
		}
	}
	return "", n, false
}

// Validate refuses networks that are not there to be named, and addresses that are none, that stand twice, or that the
// network cannot give.
func (p *Plugin) Validate(_ string, nics []network.Interface) error {
	seen := map[string]bool{}
	for i, nic := range nics {
		key, n, wrong := p.resolve(nic.NetworkID)
		if wrong != "" {
			return &network.FieldError{Index: i, Field: "network_id", Message: fmt.Sprintf("%q %s", clip(nic.NetworkID), wrong)}
		}
		ips, at, wrong := n.addresses(nic.IPs)
		if wrong != "" {
			return &network.FieldError{Index: i, Field: fmt.Sprintf("ips[%d]", at), Message: fmt.Sprintf("%q %s", clip(nic.IPs[at]), wrong)}
		}
		for j, ip := range ips {
			if mark := key + " " + ip.String(); seen[mark] {
				return &network.FieldError{
					Index: i, Field: fmt.Sprintf("ips[%d]", j), Message: fmt.Sprintf("%s stands twice in network %q", ip, nic.NetworkID),
				}
			} else {
				seen[mark] = true
			}
		}
	}
	return nil
}

// addresses reads an interface's addresses; wrong says what is wrong about the one at at.
func (n Network) addresses(texts []string) (ips []netip.Addr, at int, wrong string) {
	for i, text := range texts {
		ip, err := netip.ParseAddr(text)
		switch {
		case err != nil || ip.Zone() != "":
			return nil, i, "is no IP address"
		case n.Managed == nil:
		case !ip.Is4():
			return nil, i, "is not of IPv4, and the network serves nothing else"
		case i > 0:
			return nil, i, "is a second address, and the network gives one to an interface"
		case !usable(n.Managed.Subnet, ip):
			return nil, i, fmt.Sprintf("is no address for a guest in %s", n.Managed.Subnet)
		case slices.Contains(n.Managed.reserved(), ip):
			return nil, i, "belongs to the network itself"
		}
		ips = append(ips, ip.Unmap())
	}
	return ips, 0, ""
}

// reserved are the addresses that no guest gets.
func (m Managed) reserved() []netip.Addr { return append([]netip.Addr{m.Gateway}, m.DNS...) }

// Identity is the network, and the address where the network gives it: a guest asks for a new one when it gets a new
// device.
func (p *Plugin) Identity(nic network.Interface) string {
	key, n, _ := p.resolve(nic.NetworkID)
	if key == "" {
		return nic.NetworkID
	}
	if n.Managed == nil {
		return key
	}
	return key + " " + strings.Join(nic.IPs, ",")
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
