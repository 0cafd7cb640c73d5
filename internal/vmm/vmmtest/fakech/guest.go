// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"
)

// guest plays what runs inside the machine. Its actions execute on the worker, so that they are
// ordered with API calls; only serial and vsock traffic does not wait for it.
type guest struct {
	m      *machine
	up     chan struct{} // closed when the guest has booted
	gone   chan struct{} // closed when the machine is torn down
	timers []*time.Timer
	late   []func() // actions that wait for resume
	hold   bool     // devices that are to go are kept

	mu     sync.Mutex
	isUp   bool
	queued []byte // typed before the guest was up
}

func newGuest(m *machine) *guest {
	return &guest{m: m, up: make(chan struct{}), gone: make(chan struct{}), hold: m.v.script.Eject == "hold"}
}

// start lets the guest boot.
func (g *guest) start() {
	g.act(g.m.v.script.GuestBootMS, func() {
		text := g.m.bootText()
		if t := g.m.v.script.BootText; t != nil {
			text = *t
		}
		g.m.serial.write([]byte(text))
		g.mu.Lock()
		g.isUp = true
		queued := g.queued
		g.queued = nil
		g.mu.Unlock()
		close(g.up)
		g.echo(queued)
	})
}

// stop ends the guest; nothing it had planned happens any more.
func (g *guest) stop() {
	for _, t := range g.timers {
		t.Stop()
	}
	close(g.gone)
}

// act does f after ms milliseconds if the machine still exists, and when it is not paused.
func (g *guest) act(ms int, f func()) {
	v := g.m.v
	run := func() {
		switch {
		case v.vm != g.m:
		case g.m.state == statePaused:
			g.late = append(g.late, f)
		default:
			f()
		}
	}
	if ms <= 0 {
		v.post(run)
		return
	}
	g.timers = append(g.timers, v.after(ms, run))
}

// wake does what was due while the machine was paused.
func (g *guest) wake() {
	late := g.late
	g.late = nil
	for _, f := range late {
		g.act(0, f)
	}
}

func (g *guest) powerButton() {
	if g.m.v.script.PowerButton == "ignore" {
		return
	}
	g.act(g.m.v.script.PowerButtonMS, g.m.v.guestPowerOff)
}

// removal is the hotplug interrupt for a device that should go.
func (g *guest) removal(id string) {
	if !g.hold {
		g.act(g.m.v.script.EjectMS, func() { g.m.eject(id) })
	}
}

// keep makes the guest keep its devices, or let go of those that it was asked for meanwhile.
func (g *guest) keep(hold bool) {
	g.hold = hold
	for id, n := range g.m.nodes {
		if n.pending {
			g.removal(id)
		}
	}
}

// sees prints a disk that came or changed its size, as udev would tell a guest that looks.
func (g *guest) sees(id string) {
	d := g.m.disks[id]
	if d == nil {
		return
	}
	for _, c := range g.m.cfg.Disks {
		if deref(c.ID) == id {
			g.m.serial.write(fmt.Appendf(nil, "disk %s %d\r\n", deref(c.Serial), d.size()))
		}
	}
}

// input is called with what a client typed.
func (g *guest) input(b []byte) {
	v := g.m.v
	v.mu.Lock()
	v.facts.SerialInput += string(b)
	v.mu.Unlock()
	g.mu.Lock()
	if !g.isUp {
		g.queued = append(g.queued, b...)
		b = nil
	}
	g.mu.Unlock()
	g.echo(b)
}

func (g *guest) echo(b []byte) {
	if g.m.v.script.SerialCommands {
		b = g.obey(b)
	}
	if len(b) > 0 && !g.m.v.script.NoEcho {
		g.m.serial.write(b)
	}
}

// obey takes commands out of what was typed.
func (g *guest) obey(b []byte) []byte {
	v := g.m.v
	for i, c := range b {
		switch c {
		case 'p':
			v.post(func() { g.act(0, v.guestPowerOff) })
		case 'r', 'f':
			v.post(func() { g.act(0, v.guestReset) })
		default:
			continue
		}
		return b[:i]
	}
	return b
}

// bootText is what a guest that looked around would print.
func (m *machine) bootText() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\r\n", args...) }
	line("fake guest, %d vCPUs, %d bytes of RAM", m.cfg.Cpus.BootVcpus, m.cfg.Memory.total())
	if c := m.cfg.Payload.Cmdline; c != nil {
		line("cmdline %s", *c)
	}
	// SMBIOS tables exist on x86 only.
	if p := m.cfg.Platform; p != nil && runtime.GOARCH == "amd64" {
		for _, s := range p.OemStrings {
			line("oem: %s", s)
		}
	}
	for _, d := range m.cfg.Disks {
		size := int64(0)
		if opened := m.disks[deref(d.ID)]; opened != nil {
			size = opened.size()
		}
		line("disk %s %d", deref(d.Serial), size)
	}
	for _, n := range m.cfg.Net {
		line("net %s", n.Mac)
	}
	b.WriteString(BootMarker)
	return b.String() + " "
}
