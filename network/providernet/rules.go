// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package providernet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// nftPatience bounds one run of nft, which takes some milliseconds.
const nftPatience = 5 * time.Second

// table is the network's own table, so that no other rules are touched. A network's name is an identifier to nft.
func (s *segment) table() string { return "ip cloud-hypervisor-provider-" + s.key }

// ruleset replaces the table in one transaction. To be let through by it is not yet to be let through by the host's other
// tables; to be dropped by it is final.
func (s *segment) ruleset() string {
	m, bridge := s.network.Managed, s.network.Bridge
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("table %s", s.table())
	line("delete table %s", s.table())
	line("table %s {", s.table())
	if m.NAT {
		line("\tchain postrouting {")
		line("\t\ttype nat hook postrouting priority srcnat; policy accept;")
		line("\t\tip saddr %s ip daddr != %s oifname != %q masquerade", m.Subnet, m.Subnet, bridge)
		line("\t}")
	}
	line("\tchain forward {")
	line("\t\ttype filter hook forward priority filter; policy accept;")
	line("\t\tiifname %q oifname %q accept", bridge, bridge) // within the bridge, where br_netfilter is on
	if m.NAT {
		line("\t\toifname %q ct state established,related accept", bridge)
		line("\t\tiifname %q ip saddr %s accept", bridge, m.Subnet)
	}
	line("\t\toifname %q drop", bridge)
	line("\t\tiifname %q drop", bridge)
	line("\t}")
	line("\tchain input {")
	line("\t\ttype filter hook input priority filter; policy accept;")
	line("\t\tiifname != %q accept", bridge)
	line("\t\tct state established,related accept")
	if m.DHCP {
		line("\t\tudp dport 67 accept")
	}
	line("\t\tip daddr %s icmp type echo-request accept", m.Gateway)
	if slices.Contains(m.DNS, m.Gateway) {
		line("\t\tip daddr %s meta l4proto { tcp, udp } th dport 53 accept", m.Gateway)
	}
	line("\t\tdrop")
	line("\t}")
	line("}")
	return b.String()
}

// ruleError is why rules could not be set.
type ruleError struct {
	reason string
	err    error
}

func (e *ruleError) Error() string { return e.err.Error() }
func (e *ruleError) Unwrap() error { return e.err }

func (s *segment) rules(ctx context.Context) error { return s.plugin.nft(ctx, s.ruleset()) }

// unrule removes the table; making it first lets that work when there is none.
func (s *segment) unrule(ctx context.Context) error {
	return s.plugin.nft(ctx, fmt.Sprintf("table %s\ndelete table %s\n", s.table(), s.table()))
}

func (p *Plugin) nft(ctx context.Context, rules string) error {
	ctx, cancel := context.WithTimeout(ctx, nftPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.o.Nft, "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return &ruleError{"NftMissing", fmt.Errorf("a managed network needs the program nft (nftables): %w", err)}
	case err != nil:
		said, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
		return &ruleError{"RulesRefused", fmt.Errorf("nft: %w: %s", err, said)}
	}
	return nil
}

// nftList is an error if there is no such table.
func (p *Plugin) nftList(ctx context.Context, table string) error {
	ctx, cancel := context.WithTimeout(ctx, nftPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.o.Nft, "-f", "-")
	cmd.Stdin = strings.NewReader("list table " + table + "\n")
	return cmd.Run()
}
