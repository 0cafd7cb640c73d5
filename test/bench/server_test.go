// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	metaapi "github.com/ironcore-dev/ironcore/iri/apis/meta/v1alpha1"
	"google.golang.org/protobuf/proto"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/iriserver"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/event"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume/localdisk"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/isolated"
)

// newServer makes a server over a real store; nothing starts machines.
func newServer(b *testing.B) (*iriserver.Server, *store.Store) {
	b.Helper()
	st, err := store.Open(b.Context(), store.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = st.Close() })
	classes, err := class.NewSet([]class.Class{{Name: "small", Resources: map[string]int64{"cpu": 1, "memory": 1 << 30}}})
	if err != nil {
		b.Fatal(err)
	}
	events, err := event.New(event.Options{})
	if err != nil {
		b.Fatal(err)
	}
	disks, err := localdisk.New(localdisk.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s, err := iriserver.New(iriserver.Options{
		Store: st, Events: events, Classes: classes, Host: class.Host{CPUs: 1 << 40, MemoryBytes: 1 << 60},
		Volumes: []volume.Plugin{disks}, Network: isolated.New(isolated.Options{}),
		Capabilities: vmm.Capabilities{Ignition: []vmm.IgnitionTransport{vmm.IgnitionFWCfg}},
		CheckImage:   image.ValidateReference, Version: "0.0.0",
	})
	if err != nil {
		b.Fatal(err)
	}
	return s, st
}

// newMachine is a machine as the poollet sends it.
func newMachine(n int64) *iri.Machine {
	const prefix = "machinepoollet.ironcore.dev/"
	return &iri.Machine{
		Metadata: &metaapi.ObjectMetadata{
			Labels: map[string]string{
				prefix + "machine-uid": fmt.Sprintf("00000000-0000-4000-8000-%012d", n), prefix + "machine-namespace": "default",
				prefix + "machine-name": fmt.Sprintf("machine-%d", n),
			},
			Annotations: map[string]string{prefix + "machine-generation": "0", prefix + "irimachine-generation": "1", prefix + "networkinterfacemapping": `{"primary":{"name":"nic","uid":"u"}}`},
		},
		Spec: &iri.MachineSpec{
			Class: "small", IgnitionData: make([]byte, 1024),
			Volumes:           []*iri.Volume{{Name: "root", Device: "oda", LocalDisk: &iri.LocalDisk{SizeBytes: 1 << 30, Image: &iri.ImageSpec{Image: "registry.example/image:1"}}}},
			NetworkInterfaces: []*iri.NetworkInterface{{Name: "primary", NetworkId: "ironcore-net://default/net/1/uid", Ips: []string{"10.0.0.1"}}},
		},
	}
}

// baseline measures one durable write of 2 KiB at a time.
type baseline struct {
	file *os.File
	took []time.Duration
}

func newBaseline(b *testing.B) *baseline {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "baseline"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = f.Close() })
	return &baseline{file: f}
}

func (l *baseline) measure(b *testing.B, rounds int) {
	b.Helper()
	block := make([]byte, 2048)
	for range rounds {
		begin := time.Now()
		_, err := l.file.Write(block)
		if err = errors.Join(err, l.file.Sync()); err != nil {
			b.Fatal(err)
		}
		l.took = append(l.took, time.Since(begin))
	}
}

func median(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)/2]
}

func total(took []time.Duration) (sum time.Duration) {
	for _, t := range took {
		sum += t
	}
	return sum
}

// createAll lets 16 clients create machines first to last, one after the other each, and returns the latencies
// and the time it took.
func createAll(b *testing.B, s *iriserver.Server, first, last int64) ([]time.Duration, time.Duration) {
	b.Helper()
	took, requests := make([]time.Duration, last-first), make([]*iri.CreateMachineRequest, last-first)
	for i := range requests {
		requests[i] = &iri.CreateMachineRequest{Machine: newMachine(first + int64(i))}
	}
	begin := time.Now()
	var next atomic.Int64
	next.Store(first)
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for i := next.Add(1) - 1; i < last; i = next.Add(1) - 1 {
				begin := time.Now()
				if _, err := s.CreateMachine(context.Background(), requests[i-first]); err != nil {
					b.Error(err)
					return
				}
				took[i-first] = time.Since(begin)
			}
		})
	}
	clients.Wait()
	return took, time.Since(begin)
}

// BenchmarkDurableCreateMachine: 16 clients; at least 3 times the rate of one fsynced write at a time, p50 at most 4
// such writes. Both are measured in turns, as other users of the disk disturb them. A turn is long enough for the store
// to bring most of what it was told into its database meanwhile, and the baseline begins when it is done with the rest.
func BenchmarkDurableCreateMachine(b *testing.B) {
	s, _ := newServer(b)
	base := newBaseline(b)
	var took []time.Duration
	var elapsed time.Duration
	const turn = 1600
	for done := 0; done < b.N; done += turn {
		time.Sleep(100 * time.Millisecond)
		base.measure(b, 100)
		part, while := createAll(b, s, int64(done), int64(min(done+turn, b.N)))
		took, elapsed = append(took, part...), elapsed+while
	}
	rate := float64(len(took)) / elapsed.Seconds() * total(base.took).Seconds() / float64(len(base.took))
	p50 := float64(median(took)) / float64(median(base.took))
	if b.N >= turn && (rate < 3 || p50 > 4) {
		b.Logf("NOT REACHED: %.1f times the rate (promised: at least 3), p50 of %.1f writes (promised: at most 4)", rate, p50)
	}
	b.ReportMetric(rate, "x-fsync-rate")
	b.ReportMetric(p50, "p50-in-fsyncs")
	b.ReportMetric(float64(median(base.took).Microseconds()), "fsync-µs")
}

// BenchmarkListMachines10000: at most 5 ms in the server.
func BenchmarkListMachines10000(b *testing.B) {
	s, _ := newServer(b)
	fill(b, s, 10000)
	var last *iri.ListMachinesResponse
	for b.Loop() {
		answer, err := s.ListMachines(context.Background(), &iri.ListMachinesRequest{})
		if err != nil || len(answer.Machines) != 10000 {
			b.Fatal(len(answer.GetMachines()), err)
		}
		last = answer
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/op")
	b.ReportMetric(float64(proto.Size(last))/(1<<20), "MiB")
}

// BenchmarkListMachinesByUID is what the poollet asks at each reconcile, among 10,000 machines.
func BenchmarkListMachinesByUID(b *testing.B) {
	s, _ := newServer(b)
	fill(b, s, 10000)
	req := &iri.ListMachinesRequest{Filter: &iri.MachineFilter{LabelSelector: newMachine(77).Metadata.Labels}}
	for b.Loop() {
		if answer, err := s.ListMachines(context.Background(), req); err != nil || len(answer.Machines) != 1 {
			b.Fatal(len(answer.GetMachines()), err)
		}
	}
}

// BenchmarkDeleteMachineRepeated is the poollet's storm while a machine terminates.
func BenchmarkDeleteMachineRepeated(b *testing.B) {
	s, st := newServer(b)
	fill(b, s, 1)
	req := &iri.DeleteMachineRequest{MachineId: st.List()[0].ID}
	if _, err := s.DeleteMachine(context.Background(), req); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.DeleteMachine(context.Background(), req); !machine.IsKind(err, machine.Unavailable) {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deletes/s")
}

func fill(b *testing.B, s *iriserver.Server, machines int) {
	b.Helper()
	var n atomic.Int64
	var clients sync.WaitGroup
	for range 64 {
		clients.Go(func() {
			for i := n.Add(1); i <= int64(machines); i = n.Add(1) {
				if _, err := s.CreateMachine(context.Background(), &iri.CreateMachineRequest{Machine: newMachine(i)}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
}
