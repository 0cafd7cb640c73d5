// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// Labels by which the machinepoollet names the machine of the cluster.
const (
	namespaceLabel = "machinepoollet.ironcore.dev/machine-namespace"
	nameLabel      = "machinepoollet.ironcore.dev/machine-name"
)

// maxName bounds a label value in bytes; a Kubernetes name has 253 at most.
const maxName = 253

// watched are the machines with metrics of their own: the oldest, so that series do not come and go.
func (s *Sources) watched(all []*machine.Machine) []*machine.Machine {
	return all[:min(len(all), s.PerMachine)]
}

// collectEach tells what is told of each machine.
func (c *collector) collectEach(out chan<- prometheus.Metric, all []*machine.Machine) {
	watched := c.s.watched(all)
	c.omitted.send(out, float64(len(all)-len(watched)))
	for _, m := range watched {
		c.info.send(out, 1, m.ID, label(m.Desired.Labels[namespaceLabel]), label(m.Desired.Labels[nameLabel]), m.Desired.Class)
		if m.Record.VMM == nil || m.Record.VMM.Process == nil {
			continue
		}
		if p, err := c.s.Process(*m.Record.VMM.Process); err == nil { // else it has just ended
			c.cpu.send(out, p.CPU.Seconds(), m.ID)
			c.memory.send(out, float64(p.ResidentBytes), m.ID)
		}
		for _, d := range c.sampler.counters(m.ID) {
			c.collectDevice(out, m, d)
		}
	}
}

func (c *collector) collectDevice(out chan<- prometheus.Metric, m *machine.Machine, d vmm.DeviceCounters) {
	name := deviceName(m, d)
	inBytes, outBytes, inOps, outOps := c.diskIn, c.diskOut, c.diskReads, c.diskWrites
	if d.Kind == vmm.NICDevice {
		inBytes, outBytes, inOps, outOps = c.netIn, c.netOut, c.netRecv, c.netXm
	}
	inBytes.send(out, float64(d.InBytes), m.ID, name)
	outBytes.send(out, float64(d.OutBytes), m.ID, name)
	inOps.send(out, float64(d.InOps), m.ID, name)
	outOps.send(out, float64(d.OutOps), m.ID, name)
}

// deviceName is what the client calls a device; its id if it is not wanted any more.
func deviceName(m *machine.Machine, d vmm.DeviceCounters) string {
	if d.Kind == vmm.NICDevice {
		for _, n := range m.Desired.NICs {
			if vmm.DeviceID("nic", n.Name) == d.ID {
				return n.Name
			}
		}
		return d.ID
	}
	for _, v := range m.Desired.Volumes {
		if vmm.DeviceID("disk", v.Name) == d.ID {
			return v.Name
		}
	}
	return d.ID
}

// label keeps a value that came from a client within what Prometheus takes.
func label(s string) string {
	valid := []rune(s)
	if len(s) > maxName {
		valid = valid[:min(len(valid), maxName/4)]
	}
	return string(valid) // what is not UTF-8 has become U+FFFD
}
