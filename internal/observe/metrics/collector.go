// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
)

// family is one metric and all its series.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func (f *family) send(out chan<- prometheus.Metric, value float64, labels ...string) {
	if m, err := prometheus.NewConstMetric(f.desc, f.kind, value, labels...); err == nil {
		out <- m // a bad label costs one series, not the scrape
	}
}

// collector tells what the sources know at the moment of a scrape.
type collector struct {
	s       Sources
	sampler *Sampler
	all     []*family

	machines, notReady, notReadyOldest, deletionOldest, quarantined       *family
	processes, queue, driver, check                                       *family
	capacityCPUs, capacityMemory, capacityMachines, classQuantity         *family
	allocatedCPUs, allocatedMemory, allocatedMachines                     *family
	imageBytes, eventsHeld, eventsLost, guests                            *family
	consoles, consoleClients, consoleErrors, consoleLost                  *family
	omitted, info, cpu, memory                                            *family
	diskIn, diskOut, diskReads, diskWrites, netIn, netOut, netRecv, netXm *family
}

var _ prometheus.Collector = (*collector)(nil)

func newCollector(s Sources, sampler *Sampler) *collector {
	c := &collector{s: s, sampler: sampler}
	c.defineServer()
	c.defineMachines()
	return c
}

func (c *collector) define(kind prometheus.ValueType, name, help string, labels ...string) *family {
	f := &family{desc: prometheus.NewDesc(name, help, labels, nil), kind: kind}
	c.all = append(c.all, f)
	return f
}

func (c *collector) defineServer() {
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	c.machines = c.define(gauge, "chp_machines", "Machines by state and class.", "state", "class")
	c.notReady = c.define(gauge, "chp_machines_not_ready",
		"Machines that are not as wanted, by the step at which they stand or the reason for which they wait.", "reason")
	c.notReadyOldest = c.define(gauge, "chp_machine_not_ready_oldest_seconds",
		"For how long the machine that has waited longest has not been as wanted; 0 without one.")
	c.deletionOldest = c.define(gauge, "chp_deletion_oldest_seconds",
		"For how long the oldest deletion has been under way; 0 without one.")
	c.quarantined = c.define(gauge, "chp_store_quarantined_machines", "Stored machines that are damaged and set aside.")
	c.processes = c.define(gauge, "chp_vmm_processes", "VMM processes that are recorded, by driver.", "driver")
	c.guests = c.define(gauge, "chp_guests", "Running machines whose guest agent told its system, by what it said; the rarest are \"other\".", "os")
	c.queue = c.define(gauge, "chp_reconcile_queue_length", "Machines that wait for a look, due or not.")
	c.driver = c.define(gauge, "chp_driver_info",
		"Always 1; a hypervisor of this server. New machines run on the chosen one.", "driver", "version", "accelerator", "chosen")
	c.check = c.define(gauge, "chp_health_check_ok", "1 if the health check was well when it was asked last, else 0.", "check")
	c.capacityCPUs = c.define(gauge, "chp_capacity_cpus", "Virtual CPUs that machines may have together.")
	c.capacityMemory = c.define(gauge, "chp_capacity_memory_bytes", "Memory that machines may have together.")
	c.capacityMachines = c.define(gauge, "chp_capacity_machines", "Machines that there may be; 0 is no bound.")
	c.classQuantity = c.define(gauge, "chp_class_quantity", "How many machines of the class fit on the empty server.", "class")
	c.allocatedCPUs = c.define(gauge, "chp_allocated_cpus", "Virtual CPUs of all machines, running or not.")
	c.allocatedMemory = c.define(gauge, "chp_allocated_memory_bytes", "Memory of all machines, running or not, with what is counted for each VMM.")
	c.allocatedMachines = c.define(gauge, "chp_allocated_machines", "Machines, running or not.")
	c.imageBytes = c.define(gauge, "chp_image_cache_bytes", "Disk space that the image cache takes.")
	c.eventsHeld = c.define(gauge, "chp_events_held", "Machine events that can be fetched.")
	c.eventsLost = c.define(counter, "chp_events_lost_total", "Machine events driven out before they could be fetched. Should be 0.")
	c.consoles = c.define(gauge, "chp_console_machines", "Machines whose console is recorded.")
	c.consoleClients = c.define(gauge, "chp_console_clients", "Clients attached to consoles.")
	c.consoleErrors = c.define(counter, "chp_console_log_errors_total", "Failed writes to console logs.")
	c.consoleLost = c.define(counter, "chp_console_log_lost_bytes_total", "Bytes of console output that no log file got.")
}

func (c *collector) defineMachines() {
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	c.omitted = c.define(gauge, "chp_machine_metrics_omitted", "Machines without metrics of their own, since there are too many.")
	c.info = c.define(gauge, "chp_machine_info", "Always 1; which machine of the cluster a machine of this server is.",
		"machine", "namespace", "name", "class")
	c.cpu = c.define(counter, "chp_machine_cpu_seconds_total", "CPU time of the machine's VMM process, guest included.", "machine")
	c.memory = c.define(gauge, "chp_machine_memory_resident_bytes", "Resident memory of the machine's VMM process, guest included.", "machine")
	device := []string{"machine", "device"}
	c.diskIn = c.define(counter, "chp_machine_disk_read_bytes_total", "Bytes the guest read from a volume.", device...)
	c.diskOut = c.define(counter, "chp_machine_disk_written_bytes_total", "Bytes the guest wrote to a volume.", device...)
	c.diskReads = c.define(counter, "chp_machine_disk_reads_total", "Reads of the guest from a volume.", device...)
	c.diskWrites = c.define(counter, "chp_machine_disk_writes_total", "Writes of the guest to a volume.", device...)
	c.netIn = c.define(counter, "chp_machine_network_received_bytes_total", "Bytes the guest received on an interface.", device...)
	c.netOut = c.define(counter, "chp_machine_network_sent_bytes_total", "Bytes the guest sent on an interface.", device...)
	c.netRecv = c.define(counter, "chp_machine_network_received_frames_total", "Frames the guest received on an interface.", device...)
	c.netXm = c.define(counter, "chp_machine_network_sent_frames_total", "Frames the guest sent on an interface.", device...)
}

// Describe names all metrics.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range c.all {
		out <- f.desc
	}
}

// Collect tells all of them.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	all := c.s.Store.List()
	c.collectMachines(out, all)
	c.collectCapacity(out)
	c.collectServer(out)
	c.collectEach(out, all)
}

func (c *collector) collectCapacity(out chan<- prometheus.Metric) {
	free := class.Free(c.s.Host, c.s.Reserve)
	c.capacityCPUs.send(out, float64(free.CPUs))
	c.capacityMemory.send(out, float64(free.MemoryBytes))
	c.capacityMachines.send(out, float64(free.Machines))
	for _, k := range c.s.Classes.List() {
		c.classQuantity.send(out, float64(class.Quantity(k, c.s.Host, c.s.Reserve)), k.Name)
	}
	used := c.s.Store.Usage()
	c.allocatedCPUs.send(out, float64(used.CPUs))
	c.allocatedMemory.send(out, float64(used.MemoryBytes+used.Machines*c.s.Reserve.MemoryPerMachine))
	c.allocatedMachines.send(out, float64(used.Machines))
}

func (c *collector) collectServer(out chan<- prometheus.Metric) {
	c.queue.send(out, float64(c.s.Work.QueueLength()))
	c.quarantined.send(out, float64(len(c.s.Store.Quarantined())))
	for i, d := range c.s.Drivers {
		chosen := "false"
		if i == 0 {
			chosen = "true"
		}
		c.driver.send(out, 1, d.Name, d.Version, d.Accelerator, chosen)
	}
	for _, r := range c.s.Checks() {
		value := 0.0
		if r.OK {
			value = 1
		}
		c.check.send(out, value, r.Name)
	}
	events, consoles := c.s.Events(), c.s.Consoles()
	c.eventsHeld.send(out, float64(events.Held))
	c.eventsLost.send(out, float64(events.Lost))
	c.consoles.send(out, float64(consoles.Machines))
	c.consoleClients.send(out, float64(consoles.Clients))
	c.consoleErrors.send(out, float64(consoles.LogErrors))
	c.consoleLost.send(out, float64(consoles.LogLost))
	if bytes, known := c.sampler.imageBytes(); known {
		c.imageBytes.send(out, float64(bytes))
	}
}

// collectMachines tells what is counted over all machines.
func (c *collector) collectMachines(out chan<- prometheus.Metric, all []*machine.Machine) {
	type key struct {
		state machine.State
		class string
	}
	now := c.s.Now()
	counts, reasons, processes, systems := map[key]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	for _, k := range c.s.Classes.List() {
		for _, state := range []machine.State{machine.Pending, machine.Running, machine.Suspended, machine.Terminating} {
			counts[key{state, k.Name}] = 0
		}
	}
	for _, d := range c.s.Drivers {
		processes[d.Name] = 0
	}
	var oldest, oldestDeletion time.Duration
	for _, m := range all {
		state := m.Record.State
		if state == "" {
			state = machine.Pending
		}
		counts[key{state, m.Desired.Class}]++
		if ready := m.Record.Condition(reconcile.ConditionReady); ready != nil && ready.Status != machine.ConditionTrue {
			reasons[ready.Reason]++
			oldest = max(oldest, now.Sub(ready.LastTransition))
		}
		if state == machine.Running && m.Record.GuestOS != "" {
			systems[m.Record.GuestOS]++
		}
		if m.Desired.DeletedAt != nil {
			oldestDeletion = max(oldestDeletion, now.Sub(*m.Desired.DeletedAt))
		}
		if v := m.Record.VMM; v != nil && v.Process != nil {
			processes[v.Driver]++
		}
	}
	for k, n := range counts {
		c.machines.send(out, float64(n), string(k.state), k.class)
	}
	for reason, n := range reasons {
		c.notReady.send(out, float64(n), reason)
	}
	for driver, n := range processes {
		c.processes.send(out, float64(n), driver)
	}
	for system, n := range commonest(systems, maxGuestSystems) {
		c.guests.send(out, float64(n), system)
	}
	c.notReadyOldest.send(out, oldest.Seconds())
	c.deletionOldest.send(out, oldestDeletion.Seconds())
}

// maxGuestSystems bounds a label whose values guests choose.
const maxGuestSystems = 20

// commonest keeps the most frequent keys and counts the others as "other".
func commonest(counts map[string]int, most int) map[string]int {
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	out := map[string]int{}
	for i, k := range keys {
		name := k
		if i >= most {
			name = "other"
		}
		out[name] += counts[k]
	}
	return out
}
