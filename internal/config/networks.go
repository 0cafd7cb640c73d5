// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config/document"
)

// ProviderNetworks are the bridges that the providernet plugin connects to.
type ProviderNetworks struct {
	AllowBridges []string          // patterns of bridges that a network_id can name beside the networks
	Networks     []ProviderNetwork // by name
}

// ProviderNetwork is what a network_id can name.
type ProviderNetwork struct {
	Name     string
	Bridge   string // empty only if Managed: the plugin chooses
	MTU      int    // 0 = the bridge's
	Isolated bool
	Managed  *ManagedNetwork // nil = the bridge is there already
}

// ManagedNetwork is one that the daemon makes.
type ManagedNetwork struct {
	Subnet  netip.Prefix
	Gateway netip.Addr // not valid = the subnet's first
	NAT     bool
	DNS     []netip.Addr
	DHCP    bool
}

const (
	minMTU, maxMTU = 68, 65521
	managedPath    = "managed"
)

var (
	networkKeys = []string{"bridge", "mtu", "isolated", managedPath}
	managedKeys = []string{"subnet", "gateway", "nat", "dns", "dhcp"}

	networkName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	deviceName  = regexp.MustCompile(`^[a-zA-Z0-9_.@-]{1,15}$`)
)

func newManaged() *ManagedNetwork { return &ManagedNetwork{NAT: true, DHCP: true} }

// set gives one key its value; the keys of a managed network are told from the others by their names alone.
func (n *ProviderNetwork) set(key, value string) (err error) {
	if slices.Contains(managedKeys, key) && n.Managed == nil {
		n.Managed = newManaged()
	}
	switch key {
	case "bridge":
		if n.Bridge = value; !deviceName.MatchString(value) {
			return badValue("", "%q is no name of a network device", value)
		}
	case "mtu":
		return integer(func(*Config) *int { return &n.MTU }, minMTU, maxMTU).set(nil, []string{value})
	case "isolated":
		n.Isolated, err = boolean(value)
	case "subnet":
		n.Managed.Subnet, err = parseSubnet(value)
	case "gateway":
		n.Managed.Gateway, err = parseIPv4(value)
	case "nat":
		n.Managed.NAT, err = boolean(value)
	case "dhcp":
		n.Managed.DHCP, err = boolean(value)
	case "dns":
		var ip netip.Addr
		if ip, err = parseIPv4(value); err == nil {
			n.Managed.DNS = append(n.Managed.DNS, ip)
		}
	default:
		near := document.Nearest(key, slices.Concat(networkKeys, managedKeys))
		if near != "" {
			near = "did you mean " + near + "?"
		}
		return badValue(near, "unknown key %q", key)
	}
	return err
}

func boolean(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, badValue("write true or false", "%q is neither true nor false", s)
}

func parseIPv4(s string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(s)
	if err != nil || !ip.Is4() {
		return netip.Addr{}, badValue("", "%q is no IPv4 address", s)
	}
	return ip, nil
}

func parseSubnet(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil || !p.Addr().Is4():
		return p, badValue("write it like 10.1.2.0/24", "%q is no IPv4 subnet", s)
	case p.Bits() < 8 || p.Bits() > 30:
		return p, badValue("", "%q is not between /8 and /30", s)
	case p.Masked() != p:
		return p, badValue("write "+p.Masked().String(), "%q has bits behind its mask", s)
	}
	return p, nil
}

// check says what the values cannot be together, and which key is to blame.
func (n *ProviderNetwork) check() (key string, err error) {
	m := n.Managed
	switch {
	case n.Bridge == "" && m == nil:
		return "", badValue("add bridge, or managed for a network that the daemon makes", "names no bridge")
	case m == nil:
		return "", nil
	case !m.Subnet.IsValid():
		return managedPath, badValue("add subnet, such as 10.1.2.0/24", "names no subnet")
	case m.Gateway.IsValid() && (!m.Subnet.Contains(m.Gateway) || m.Gateway == m.Subnet.Addr() || m.Gateway == lastAddr(m.Subnet)):
		return managedPath + ".gateway", badValue("use "+m.Subnet.Addr().Next().String(), "%s is no address for a host in %s", m.Gateway, m.Subnet)
	}
	return "", nil
}

// lastAddr is the subnet's broadcast address.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom4(b)
}

// parseProviderNetwork reads a network as on a command line: name,key=value,...
func parseProviderNetwork(s string) (ProviderNetwork, error) {
	name, rest, _ := strings.Cut(s, ",")
	n := ProviderNetwork{Name: name}
	if !networkName.MatchString(name) {
		return n, badNetworkName(name)
	}
	for _, pair := range strings.Split(rest, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return n, badValue("write it like lab,bridge=br0,mtu=9000", "%q is not of the form name,key=value,...", s)
		}
		if err := n.set(key, value); err != nil {
			return n, fmt.Errorf("%s: %w", key, err)
		}
	}
	if key, err := n.check(); err != nil {
		return n, fmt.Errorf("%s: %w", strings.TrimSuffix(name+" "+key, " "), err)
	}
	return n, nil
}

func badNetworkName(name string) error {
	return badValue("", "network name %q is not of 1 to 63 small letters, digits, dots and hyphens", name)
}

// pairs are the keys and values that set takes, those of a managed network last.
func (n ProviderNetwork) pairs() (plain, managed [][2]string) {
	if n.Bridge != "" {
		plain = append(plain, [2]string{"bridge", n.Bridge})
	}
	if n.MTU != 0 {
		plain = append(plain, [2]string{"mtu", strconv.Itoa(n.MTU)})
	}
	if n.Isolated {
		plain = append(plain, [2]string{"isolated", "true"})
	}
	if m := n.Managed; m != nil {
		managed = append(managed, [2]string{"subnet", m.Subnet.String()})
		if m.Gateway.IsValid() {
			managed = append(managed, [2]string{"gateway", m.Gateway.String()})
		}
		managed = append(managed, [2]string{"nat", strconv.FormatBool(m.NAT)})
		for _, d := range m.DNS {
			managed = append(managed, [2]string{"dns", d.String()})
		}
		managed = append(managed, [2]string{"dhcp", strconv.FormatBool(m.DHCP)})
	}
	return plain, managed
}

// String renders the form of a command line.
func (n ProviderNetwork) String() string {
	parts := []string{n.Name}
	plain, managed := n.pairs()
	for _, p := range append(plain, managed...) {
		parts = append(parts, p[0]+"="+p[1])
	}
	return strings.Join(parts, ",")
}

// networkList keeps networks in the order of their names, as there is none in a mapping.
type networkList struct {
	place func(*Config) *[]ProviderNetwork
}

func (l networkList) set(c *Config, texts []string) error {
	var out []ProviderNetwork
	for _, text := range texts {
		n, err := parseProviderNetwork(text)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(out, func(o ProviderNetwork) bool { return o.Name == n.Name }) {
			return badValue("", "network %q is given twice", n.Name)
		}
		out = append(out, n)
	}
	sortNetworks(out)
	*l.place(c) = out
	return nil
}

func (l networkList) get(c *Config) []string {
	var out []string
	for _, n := range *l.place(c) {
		out = append(out, n.String())
	}
	return out
}

func sortNetworks(all []ProviderNetwork) {
	slices.SortFunc(all, func(a, b ProviderNetwork) int { return strings.Compare(a.Name, b.Name) })
}

// networksFrom reads the mapping of a document, key by key, so that each problem has its place.
func (r *loading) networksFrom(v *document.Node, at string) []ProviderNetwork {
	if v.Kind != document.Map {
		r.report.Errorf(v.Pos, at, "want a mapping of networks by name, found %s", v.Describe())
		return nil
	}
	var out []ProviderNetwork
	for _, f := range v.Fields {
		n, where := ProviderNetwork{Name: f.Key}, document.Join(at, f.Key)
		if !networkName.MatchString(f.Key) {
			r.refuse(f.Pos, where, badNetworkName(f.Key))
			continue
		}
		if f.Value.Kind != document.Map {
			r.report.Errorf(f.Value.Pos, where, "want a mapping with bridge or managed, found %s", f.Value.Describe())
			continue
		}
		before := len(r.report.Errors())
		r.networkKeys(&n, f.Value, where, networkKeys)
		if len(r.report.Errors()) > before {
			continue
		}
		if key, err := n.check(); err != nil {
			if key != "" {
				where = document.Join(where, key)
			}
			r.refuse(f.Pos, where, err)
			continue
		}
		out = append(out, n)
	}
	sortNetworks(out)
	return out
}

func (r *loading) networkKeys(n *ProviderNetwork, v *document.Node, at string, allowed []string) {
	for _, f := range v.Fields {
		where := document.Join(at, f.Key)
		switch {
		case !slices.Contains(allowed, f.Key):
			p := Problem{Severity: document.Error, Position: f.Pos, Path: where, Message: "unknown key"}
			if near := document.Nearest(f.Key, allowed); near != "" {
				p.Suggestion = fmt.Sprintf("did you mean %s?", near)
			} else if slices.Contains(managedKeys, f.Key) {
				p.Suggestion = fmt.Sprintf("put it below %s", managedPath)
			}
			r.report.Add(p)
		case f.Key == managedPath && f.Value.Kind == document.Map:
			n.Managed = newManaged()
			r.networkKeys(n, f.Value, where, managedKeys)
		case f.Key == managedPath:
			r.report.Errorf(f.Value.Pos, where, "want a mapping with subnet, found %s", f.Value.Describe())
		case f.Key == "dns":
			r.dnsServers(n, f.Value, where)
		default:
			r.networkValue(n, f.Key, f.Value, where)
		}
	}
}

func (r *loading) dnsServers(n *ProviderNetwork, v *document.Node, at string) {
	if v.Kind != document.List {
		r.report.Errorf(v.Pos, at, "want a list of IPv4 addresses, found %s", v.Describe())
		return
	}
	for i, item := range v.Items {
		r.networkValue(n, "dns", item, document.Index(at, i))
	}
}

func (r *loading) networkValue(n *ProviderNetwork, key string, v *document.Node, at string) {
	want := document.String
	switch key {
	case "mtu":
		want = document.Int
	case "isolated", "nat", "dhcp":
		want = document.Bool
	}
	if v.Kind != want {
		r.report.Errorf(v.Pos, at, "want %s, found %s", want, v.Describe())
		return
	}
	if err := n.set(key, v.Text); err != nil {
		r.refuse(v.Pos, at, err)
	}
}

// networkYAML writes networks as networksFrom reads them.
func networkYAML(b *bytes.Buffer, all []ProviderNetwork, depth int) {
	for _, n := range all {
		fmt.Fprintf(b, "%s%s:\n", indent(depth), quote(n.Name))
		plain, managed := n.pairs()
		for _, p := range plain {
			fmt.Fprintf(b, "%s%s: %s\n", indent(depth+1), p[0], networkText(p))
		}
		if n.Managed == nil {
			continue
		}
		fmt.Fprintf(b, "%s%s:\n", indent(depth+1), managedPath)
		dns := false
		for _, p := range managed {
			switch {
			case p[0] != "dns":
				fmt.Fprintf(b, "%s%s: %s\n", indent(depth+2), p[0], networkText(p))
				continue
			case !dns:
				fmt.Fprintf(b, "%sdns:\n", indent(depth+2))
				dns = true
			}
			fmt.Fprintf(b, "%s- %s\n", indent(depth+3), quote(p[1]))
		}
	}
}

// networkText leaves numbers and truth values as they are.
func networkText(p [2]string) string {
	switch p[0] {
	case "mtu", "isolated", "nat", "dhcp":
		return p[1]
	}
	return quote(p[1])
}

func bridgePattern(s string) error {
	if _, err := path.Match(s, ""); err != nil || s == "" {
		return badValue("write a bridge's name, or a pattern such as br*", "%q is no pattern of bridges", s)
	}
	return nil
}

// providerNetworks are the rules about the plugin and its networks together.
func (r *loading) providerNetworks() {
	const plugin, networks, allow = "network.plugin", "network.providernet.networks", "network.providernet.allowBridges"
	if !r.sound(plugin, networks, allow) {
		return
	}
	p := r.cfg.Network.ProviderNet
	if r.cfg.Network.Plugin != NetworkProviderNet {
		for where, given := range map[string]bool{networks: len(p.Networks) > 0, allow: len(p.AllowBridges) > 0} {
			if given {
				r.warn(where, "set network.plugin to "+NetworkProviderNet, "has no effect with network.plugin %s", r.cfg.Network.Plugin)
			}
		}
		return
	}
	if goos := r.loader.goos(); goos != "linux" {
		r.fail(plugin, "use user", "bridges need Linux, this is %s", goos)
	}
	if len(p.Networks)+len(p.AllowBridges) == 0 {
		r.warn(plugin, "set network.providernet.networks or network.providernet.allowBridges", "there is no network that a machine could name")
	}
	for i, n := range p.Networks {
		for _, o := range p.Networks[:i] {
			switch {
			case n.Managed != nil && o.Managed != nil && n.Managed.Subnet.Overlaps(o.Managed.Subnet):
				r.fail(networks, "", "subnets %s of %s and %s of %s overlap", o.Managed.Subnet, o.Name, n.Managed.Subnet, n.Name)
			case n.Bridge != "" && n.Bridge == o.Bridge && (n.Managed != nil || o.Managed != nil):
				r.fail(networks, "", "%s and %s have the bridge %s, and one of them is managed", o.Name, n.Name, n.Bridge)
			}
		}
	}
}
