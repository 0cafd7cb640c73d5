// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/event"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/health"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/metrics"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Unix(1_800_000_000, 0)

// server is a server as the sources show it.
type server struct {
	machines []*machine.Machine
	devices  func(id string) ([]vmm.DeviceCounters, error)
}

func (s *server) List() []*machine.Machine         { return s.machines }
func (s *server) QueueLength() int                 { return 3 }
func (s *server) Quarantined() []store.Quarantined { return []store.Quarantined{{Key: "x"}} }

func (s *server) Usage(...string) store.Usage {
	var u store.Usage
	for _, m := range s.machines {
		u.Machines++
		u.CPUs += m.Desired.Resources.CPUs
		u.MemoryBytes += m.Desired.Resources.MemoryBytes
	}
	return u
}

func (s *server) Counters(_ context.Context, id string) ([]vmm.DeviceCounters, error) {
	if s.devices == nil {
		return nil, machine.Errorf(machine.Unimplemented, "none")
	}
	return s.devices(id)
}

// newMachine is a running machine with a disk and a network interface.
func newMachine(i int) *machine.Machine {
	image := "registry/image:1"
	return &machine.Machine{
		ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", i),
		Desired: machine.Desired{
			Class: "small", Power: machine.PowerOn, Resources: machine.Resources{CPUs: 2, MemoryBytes: 4 << 30},
			Labels: map[string]string{
				"machinepoollet.ironcore.dev/machine-namespace": "default", "machinepoollet.ironcore.dev/machine-name": fmt.Sprintf("m%d", i),
			},
			Volumes:  []machine.Volume{{Name: "root", LocalDisk: &machine.LocalDisk{Image: &image}}},
			NICs:     []machine.NetworkInterface{{Name: "primary"}},
			Ignition: []byte("IGNITION-SECRET"),
		},
		Record: machine.Record{
			GuestOS:    "debian 12",
			State:      machine.Running,
			VMM:        &machine.VMMRecord{Driver: "cloud-hypervisor", Process: &machine.ProcessIdentity{PID: os.Getpid(), StartTicks: 7}},
			Conditions: []machine.Condition{{Type: reconcile.ConditionReady, Status: machine.ConditionTrue, Reason: "Running"}},
		},
	}
}

// busy is a server on which everything that has a metric happens.
func busy() *server {
	s := &server{machines: []*machine.Machine{newMachine(0), newMachine(1), newMachine(2), newMachine(3)}}
	deleted := now.Add(-time.Minute)
	s.machines[1].Desired.DeletedAt, s.machines[1].Record.State = &deleted, machine.Terminating
	s.machines[2].Record.State, s.machines[2].Record.VMM = machine.Pending, nil
	s.machines[2].Record.SetCondition(machine.Condition{
		Type: reconcile.ConditionReady, Status: machine.ConditionFalse, Reason: "volume.prepare", LastTransition: now.Add(-time.Hour),
	})
	s.devices = func(string) ([]vmm.DeviceCounters, error) {
		return []vmm.DeviceCounters{
			{Kind: vmm.DiskDevice, ID: vmm.DeviceID("disk", "root"), InBytes: 1, OutBytes: 2, InOps: 3, OutOps: 4},
			{Kind: vmm.NICDevice, ID: vmm.DeviceID("nic", "primary"), InBytes: 5, OutBytes: 6, InOps: 7, OutOps: 8},
		}, nil
	}
	return s
}

func watch(t testing.TB, s *server, change func(*metrics.Sources)) (*metrics.Metrics, *metrics.Sampler) {
	t.Helper()
	m, err := metrics.New("v0")
	if err != nil {
		t.Fatal(err)
	}
	classes, err := class.NewSet([]class.Class{
		{Name: "small", Resources: map[string]int64{class.CPU: 2, class.Memory: 4 << 30}},
		{Name: "large", Resources: map[string]int64{class.CPU: 16, class.Memory: 64 << 30}},
	})
	if err != nil {
		t.Fatal(err)
	}
	images := t.TempDir()
	if err := os.WriteFile(filepath.Join(images, "blob"), make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	sources := metrics.Sources{
		Store: s, Work: s, Classes: classes, Host: class.Host{CPUs: 64, MemoryBytes: 256 << 30},
		Reserve: class.Reserve{CPUs: 4, MemoryBytes: 1 << 30, MemoryPerMachine: 64 << 20},
		Drivers: []metrics.Driver{
			{Name: "cloud-hypervisor", Version: "53.0.0", Accelerator: "kvm"}, {Name: "qemu", Version: "10.0.0", Accelerator: "kvm"},
		},
		Events:   func() event.Stats { return event.Stats{Held: 5, Recorded: 9} },
		Consoles: func() console.Stats { return console.Stats{Machines: 2, Clients: 1, LogErrors: 3, LogLost: 4} },
		Checks:   func() []health.Result { return []health.Result{{Name: "store", OK: true}, {Name: "vmms"}} },
		ImageDir: images, PerMachine: 3, Now: func() time.Time { return now },
		Process: func(id machine.ProcessIdentity) (metrics.Process, error) {
			if id.StartTicks != 7 {
				return metrics.Process{}, errors.New("another one")
			}
			return metrics.Process{CPU: 1500 * time.Millisecond, ResidentBytes: 1 << 20}, nil
		},
	}
	if change != nil {
		change(&sources)
	}
	sampler, err := m.Watch(sources)
	if err != nil {
		t.Fatal(err)
	}
	return m, sampler
}

// everything has had one of everything happen.
func everything(t testing.TB) *metrics.Metrics {
	t.Helper()
	m, sampler := watch(t, busy(), nil)
	m.Step("vmm.boot", time.Second, nil)
	m.Step("vmm.boot", time.Second, errors.New("x"))
	m.Wait(time.Millisecond)
	m.Event("Warning", "VMMEnded", "RestartMachine")
	m.Event("Normal", "GuestStopped", "WatchGuest")
	rpc := grpc.NewServer()
	healthapi.RegisterHealthServer(rpc, grpchealth.NewServer())
	m.RPC().InitializeMetrics(rpc)
	rpc.Stop()
	sampler.Look(t.Context())
	return m
}

// scrape returns the answer to a scrape and its series.
func scrape(t testing.TB, m *metrics.Metrics) (text string, series map[string]string) {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", metrics.Path, nil))
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	series = map[string]string{}
	for line := range strings.Lines(w.Body.String()) {
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			series[line[:i]] = strings.TrimSpace(line[i:])
		}
	}
	return w.Body.String(), series
}

func scrapeQuietly(t testing.TB, m *metrics.Metrics) {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", metrics.Path, nil))
	if w.Code != 200 {
		t.Fatal(w.Code)
	}
}

// startOf is field 22 of /proc/PID/stat.
func startOf(t testing.TB, stat string) uint64 {
	t.Helper()
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	n, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
