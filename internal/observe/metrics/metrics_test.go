// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/metrics"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

func TestAScrapeTellsWhatTheServerIs(t *testing.T) {
	text, series := scrape(t, everything(t))
	const first, second = "00000000-0000-4000-8000-000000000000", "00000000-0000-4000-8000-000000000001"
	for name, want := range map[string]string{
		`chp_build_info{go_version="` + runtime.Version() + `",version="v0"}`: "1",
		`chp_machines{class="small",state="Running"}`:                         "2",
		`chp_machines{class="small",state="Terminating"}`:                     "1",
		`chp_machines{class="large",state="Running"}`:                         "0",
		`chp_machines_not_ready{reason="volume.prepare"}`:                     "1",
		`chp_machine_not_ready_oldest_seconds`:                                "3600",
		`chp_deletion_oldest_seconds`:                                         "60",
		`chp_vmm_processes{driver="cloud-hypervisor"}`:                        "3",
		`chp_vmm_processes{driver="qemu"}`:                                    "0",
		`chp_vmm_restarts_total{cause="vmm_ended"}`:                           "1",
		`chp_vmm_restarts_total{cause="guest_stopped"}`:                       "0",
		`chp_capacity_cpus`:                                                   "60",
		`chp_allocated_cpus`:                                                  "8",
		`chp_allocated_machines`:                                              "4",
		`chp_class_quantity{class="large"}`:                                   "3",
		`chp_health_check_ok{check="store"}`:                                  "1",
		`chp_health_check_ok{check="vmms"}`:                                   "0",
		`chp_driver_info{accelerator="kvm",chosen="true",driver="cloud-hypervisor",version="53.0.0"}`: "1",
		`chp_events_lost_total`:       "0",
		`chp_machine_metrics_omitted`: "1",
		`chp_machine_info{class="small",machine="` + first + `",name="m0",namespace="default"}`:                                "1",
		`chp_machine_cpu_seconds_total{machine="` + first + `"}`:                                                               "1.5",
		`chp_machine_memory_resident_bytes{machine="` + second + `"}`:                                                          "1.048576e+06",
		`chp_machine_disk_written_bytes_total{device="root",machine="` + first + `"}`:                                          "2",
		`chp_machine_network_sent_frames_total{device="primary",machine="` + first + `"}`:                                      "8",
		`grpc_server_handled_total{grpc_code="OK",grpc_method="Check",grpc_service="grpc.health.v1.Health",grpc_type="unary"}`: "0",
		`chp_reconcile_step_duration_seconds_count{result="error",step="vmm.boot"}`:                                            "1",
	} {
		if got, ok := series[name]; !ok || got != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
	}
	if size := series["chp_image_cache_bytes"]; size == "" || size == "0" {
		t.Errorf("image cache: %q", size)
	}
	if strings.Contains(text, "SECRET") || strings.Contains(text, "000000000003") {
		t.Error("a secret or a machine beyond the bound is told")
	}
}

func TestMachinesHaveNoMetricsOfTheirOwnWhenThatIsOff(t *testing.T) {
	asked := false
	s := busy()
	s.devices = func(string) ([]vmm.DeviceCounters, error) { asked = true; return nil, nil }
	m, sampler := watch(t, s, func(o *metrics.Sources) { o.PerMachine = 0 })
	sampler.Look(t.Context())
	if text, _ := scrape(t, m); strings.Contains(text, "machine=\"") || asked {
		t.Error("a machine has a label or was asked")
	}
}

func TestAMachineThatDoesNotAnswerLosesItsCountersAlone(t *testing.T) {
	s := busy()
	good, broken := s.devices, ""
	s.devices = func(id string) ([]vmm.DeviceCounters, error) {
		if id == broken {
			return nil, errors.New("stuck")
		}
		return good(id)
	}
	m, sampler := watch(t, s, nil)
	sampler.Look(t.Context())
	broken = s.machines[0].ID
	sampler.Look(t.Context())
	_, series := scrape(t, m)
	for id, want := range map[string]bool{s.machines[0].ID: false, s.machines[1].ID: true} {
		if _, ok := series[`chp_machine_disk_reads_total{device="root",machine="`+id+`"}`]; ok != want {
			t.Errorf("%s counted: %v", id, ok)
		}
		if _, ok := series[`chp_machine_cpu_seconds_total{machine="`+id+`"}`]; !ok {
			t.Errorf("%s has no CPU time", id)
		}
	}
}

func TestNamesThatClientsChooseDoNotBreakTheScrape(t *testing.T) {
	s := busy()
	s.machines[0].Desired.Labels["machinepoollet.ironcore.dev/machine-name"] = "bad\xff\"\n{" + strings.Repeat("ä", 1000)
	s.devices = func(string) ([]vmm.DeviceCounters, error) { // twice the same series
		d := vmm.DeviceCounters{Kind: vmm.DiskDevice, ID: "disk-gone"}
		return []vmm.DeviceCounters{d, d}, nil
	}
	m, sampler := watch(t, s, nil)
	sampler.Look(t.Context())
	if _, series := scrape(t, m); series["chp_allocated_machines"] != "4" {
		t.Errorf("%d series", len(series))
	}
}

func TestTheSamplerRunsUntilItIsStopped(t *testing.T) {
	looked := make(chan struct{}, 100)
	s := &server{machines: []*machine.Machine{newMachine(0)}}
	s.devices = func(string) ([]vmm.DeviceCounters, error) { looked <- struct{}{}; return nil, nil }
	_, sampler := watch(t, s, func(o *metrics.Sources) { o.Interval = time.Millisecond })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- sampler.Run(ctx) }()
	for range 3 {
		<-looked
	}
	stop()
	for {
		select {
		case <-looked:
			continue
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return
		}
	}
}

// The kernel's own figures are read of the very process that is recorded, and of no other.
func TestAProcessIsKnownByItsStart(t *testing.T) {
	supervisor, err := process.NewChild(process.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer supervisor.Close()
	proc, err := supervisor.Start(t.Context(), process.Spec{
		Name: "metrics-test", Argv: []string{"/bin/sh", "-c", "while :; do :; done"}, Marker: "metrics-test/" + t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = proc.Signal(context.Background(), os.Kill); <-proc.Done() }()
	s := &server{machines: []*machine.Machine{newMachine(0), newMachine(1)}}
	id := machine.ProcessIdentity(proc.Identity())
	other := id
	other.StartTicks++
	s.machines[0].Record.VMM.Process, s.machines[1].Record.VMM.Process = &id, &other
	m, _ := watch(t, s, func(o *metrics.Sources) { o.Process = nil })
	deadline := time.Now().Add(30 * time.Second)
	cpu := func(i int) string {
		_, series := scrape(t, m)
		return series[`chp_machine_cpu_seconds_total{machine="`+s.machines[i].ID+`"}`]
	}
	for cpu(0) == "" || cpu(0) == "0" {
		if time.Now().After(deadline) {
			t.Fatalf("CPU time is %q", cpu(0))
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got := cpu(1); got != "" {
		t.Errorf("a process of another start has %q", got)
	}
}

func TestSourcesAreNeeded(t *testing.T) {
	m, err := metrics.New("v0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Watch(metrics.Sources{}); err == nil {
		t.Error("taken without sources")
	}
}

// BenchmarkScrape is a scrape of a server with 1,000 machines, each with its own look at /proc: with as many of them
// having metrics of their own as by default, and with all. The bound is 100 ms for the first. It is held by the fastest
// scrape, since what others do on the machine that runs this is not the scrape's doing.
func BenchmarkScrape(b *testing.B) {
	s := busy()
	s.machines = nil
	proc := machine.ProcessIdentity{PID: os.Getpid()}
	raw, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		b.Skip("no /proc here: ", err)
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	proc.BootID = strings.TrimSpace(string(boot))
	proc.StartTicks = startOf(b, string(raw))
	for i := range 1000 {
		m := newMachine(i)
		m.Record.VMM.Process = &proc
		s.machines = append(s.machines, m)
	}
	for name, c := range map[string]struct {
		own   int
		bound time.Duration
	}{"default": {500, 100 * time.Millisecond}, "all": {1000, time.Second}} {
		b.Run(name, func(b *testing.B) {
			m, sampler := watch(b, s, func(o *metrics.Sources) { o.PerMachine, o.Process = c.own, nil })
			sampler.Look(b.Context())
			if _, series := scrape(b, m); len(series) < 11*c.own {
				b.Fatalf("%d series", len(series))
			}
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				scrapeQuietly(b, m)
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[0].Microseconds())/1000, "fastest-ms")
			if took[0] > c.bound {
				b.Errorf("a scrape takes %s, want at most %s", took[0], c.bound)
			}
		})
	}
}
