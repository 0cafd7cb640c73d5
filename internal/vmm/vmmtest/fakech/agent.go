// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"unicode/utf8"
)

// agent is a QEMU guest agent: JSON lines, a handful of commands.
type agent struct{ m *machine }

func newAgent(m *machine) *agent { return &agent{m: m} }

type agentRequest struct {
	Execute   string          `json:"execute"`
	Arguments json.RawMessage `json:"arguments"`
	ID        json.RawMessage `json:"id,omitempty"`
}

// serve answers until the connection ends.
func (a *agent) serve(r *bufio.Reader, w io.Writer) {
	for {
		line, err := r.ReadBytes('\n')
		// 0xFF is the client's way to make a real parser forget a half sent command.
		text := strings.TrimSpace(string(bytes.TrimLeftFunc(line, func(r rune) bool { return r == utf8.RuneError })))
		if text != "" {
			a.answer(w, []byte(text))
		}
		if err != nil {
			return
		}
	}
}

func (a *agent) answer(w io.Writer, line []byte) {
	var req agentRequest
	if err := json.Unmarshal(line, &req); err != nil {
		agentError(w, "GenericError", "JSON parse error")
		return
	}
	a.m.v.record("qga " + req.Execute)
	switch req.Execute {
	case "guest-sync":
		a.give(w, req.syncID())
	case "guest-sync-delimited":
		_, _ = w.Write([]byte{0xff})
		a.give(w, req.syncID())
	case "guest-ping":
		a.give(w, struct{}{})
	case "guest-info":
		a.give(w, map[string]any{"version": "10.0.0", "supported_commands": []any{}})
	case "guest-get-osinfo":
		a.give(w, map[string]string{"id": "fake", "pretty-name": "Fake guest", "kernel-release": "0.0.0"})
	case "guest-network-get-interfaces":
		a.give(w, a.interfaces())
	case "guest-shutdown":
		a.shutdown(req.Arguments)
	default:
		agentError(w, "CommandNotFound", "The command "+req.Execute+" has not been found")
	}
}

func (r agentRequest) syncID() json.RawMessage {
	var args struct {
		ID json.RawMessage `json:"id"`
	}
	_ = json.Unmarshal(r.Arguments, &args)
	return args.ID
}

func (a *agent) give(w io.Writer, v any) {
	b, err := json.Marshal(map[string]any{"return": v})
	if err == nil {
		_, _ = fmt.Fprintf(w, "%s\n", b)
	}
}

func agentError(w io.Writer, class, desc string) {
	b, err := json.Marshal(map[string]any{"error": map[string]string{"class": class, "desc": desc}})
	if err == nil {
		_, _ = fmt.Fprintf(w, "%s\n", b)
	}
}

// shutdown answers nothing, as the real agent does on success.
func (a *agent) shutdown(args json.RawMessage) {
	var mode struct {
		Mode string `json:"mode"`
	}
	_ = json.Unmarshal(args, &mode)
	g := a.m.guest
	a.m.v.post(func() {
		if mode.Mode == "reboot" {
			g.act(0, a.m.v.guestReset)
			return
		}
		g.act(a.m.v.script.PowerButtonMS, a.m.v.guestPowerOff)
	})
}

// interfaces is lo and one interface for each NIC; the script's addresses are on the first.
func (a *agent) interfaces() []map[string]any {
	list := []map[string]any{{"name": "lo", "hardware-address": "00:00:00:00:00:00", "ip-addresses": addresses("127.0.0.1/8")}}
	var macs []string
	a.m.v.do(func() {
		for _, n := range a.m.cfg.Net {
			macs = append(macs, n.Mac)
		}
	})
	for i, mac := range macs {
		nic := map[string]any{"name": fmt.Sprintf("eth%d", i), "hardware-address": mac}
		if i == 0 {
			nic["ip-addresses"] = addresses(a.m.v.script.GuestAddresses...)
		}
		list = append(list, nic)
	}
	return list
}

func addresses(cidrs ...string) []map[string]any {
	list := []map[string]any{}
	for _, c := range cidrs {
		ip, network, err := net.ParseCIDR(c)
		if err != nil {
			continue
		}
		family := "ipv6"
		if ip.To4() != nil {
			family = "ipv4"
		}
		prefix, _ := network.Mask.Size()
		list = append(list, map[string]any{
			"ip-address": ip.String(), "ip-address-type": family, "prefix": prefix,
		})
	}
	return list
}
