// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	metaapi "github.com/ironcore-dev/ironcore/iri/apis/meta/v1alpha1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"
	reflectapi "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/event"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume/localdisk"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/isolated"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/conformance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a server on a real store and a real socket; nothing starts machines.
type rig struct {
	store  *store.Store
	server *Server
	conn   *grpc.ClientConn
	client iri.MachineRuntimeClient
	socket string
}

func newRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	classes, err := class.NewSet([]class.Class{{Name: "small", Resources: map[string]int64{"cpu": 1, "memory": 1 << 30}}})
	if err != nil {
		t.Fatal(err)
	}
	events, err := event.New(event.Options{})
	if err != nil {
		t.Fatal(err)
	}
	disks, err := localdisk.New(localdisk.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Store: st, Events: events, Classes: classes, Host: class.Host{CPUs: 1000, MemoryBytes: 1 << 50},
		Volumes: []volume.Plugin{disks}, Network: isolated.New(isolated.Options{}),
		Capabilities: vmm.Capabilities{Ignition: []vmm.IgnitionTransport{vmm.IgnitionFWCfg}},
		CheckImage:   image.ValidateReference, Version: "1.2.3",
	}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{store: st, server: s}
	r.serve(t, s)
	t.Cleanup(func() { _ = st.Close() })
	return r
}

// serve opens the socket for a runtime and connects to it.
func (r *rig) serve(t *testing.T, runtime iri.MachineRuntimeServer) {
	t.Helper()
	dir, err := os.MkdirTemp("", "iri")
	if err != nil {
		t.Fatal(err)
	}
	r.socket = filepath.Join(dir, "iri.sock")
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Serve(ctx, runtime, ServeOptions{Address: r.socket, Timeout: 5 * time.Second, Ready: func() { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	r.conn, err = grpc.NewClient("unix://"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	r.client = iri.NewMachineRuntimeClient(r.conn)
	t.Cleanup(func() {
		_ = r.conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
}

func (r *rig) new(uid string) *iri.Machine {
	return (&conformance.Suite{Class: "small", Image: "registry.example/image:1"}).New(uid)
}

func TestTheServerKeepsTheContract(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Exec = consoleURLs(nil) })
	conformance.Run(t, conformance.Suite{
		Client: r.client, Class: "small", Image: "registry.example/image:1",
		Capabilities: map[string]int64{"cpu": 1, "memory": 1 << 30},
	})
}

func TestVersionNamesTheRuntime(t *testing.T) {
	r := newRig(t, nil)
	answer, err := r.client.Version(t.Context(), &iri.VersionRequest{})
	if err != nil || answer.RuntimeName != "cloud-hypervisor-provider" || answer.RuntimeVersion != "1.2.3" {
		t.Errorf("%v %v", answer, err)
	}
}

func TestInvalidUTF8IsTheClientsFaultAndNamesTheField(t *testing.T) {
	r := newRig(t, nil)
	// The client's own codec refuses to send such a text, so that the bytes are made by hand: an id of field 1.
	raw := []byte{0x0a, 0x02, 0xff, 0xfe}
	err := r.conn.Invoke(t.Context(), iri.MachineRuntime_DeleteMachine_FullMethodName, &raw, new([]byte), grpc.ForceCodec(rawCodec{}))
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "machine_id") {
		t.Errorf("invalid UTF-8: %v", err)
	}
	// machine.spec.volumes[0].name = ff
	raw = []byte{0x0a, 0x07, 0x12, 0x05, 0x22, 0x03, 0x0a, 0x01, 0xff}
	err = r.conn.Invoke(t.Context(), iri.MachineRuntime_CreateMachine_FullMethodName, &raw, new([]byte), grpc.ForceCodec(rawCodec{}))
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "machine.spec.volumes.name") {
		t.Errorf("invalid UTF-8 in a volume's name: %v", err)
	}
	raw = []byte{0x0a, 0x7f}
	err = r.conn.Invoke(t.Context(), iri.MachineRuntime_DeleteMachine_FullMethodName, &raw, new([]byte), grpc.ForceCodec(rawCodec{}))
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a message cut short: %v", err)
	}
}

type rawCodec struct{}

func (rawCodec) Name() string                       { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }

func TestTheSocketIsForItsGroupAloneAndStaleOnesAreReplaced(t *testing.T) {
	r := newRig(t, nil)
	info, err := os.Stat(r.socket)
	if err != nil || info.Mode().Perm() != SocketMode {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	if _, err := Listen(r.socket, ""); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a living socket was taken: %v", err)
	}
	stale := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	fresh, err := Listen(stale, "")
	if err != nil {
		t.Fatal(err)
	}
	_ = fresh.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file, ""); err == nil {
		t.Error("a file was replaced by a socket")
	}
	if _, err := Listen(filepath.Join(t.TempDir(), "g"), "no-such-group-here"); err == nil {
		t.Error("an unknown group is accepted")
	}
}

func TestHealthAndReflectionAnswer(t *testing.T) {
	r := newRig(t, nil)
	health, err := healthapi.NewHealthClient(r.conn).Check(t.Context(), &healthapi.HealthCheckRequest{Service: "machine.v1alpha1.MachineRuntime"})
	if err != nil || health.Status != healthapi.HealthCheckResponse_SERVING {
		t.Errorf("health: %v %v", health, err)
	}
	stream, err := reflectapi.NewServerReflectionClient(r.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&reflectapi.ServerReflectionRequest{MessageRequest: &reflectapi.ServerReflectionRequest_ListServices{}})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil || !strings.Contains(fmt.Sprint(answer), "machine.v1alpha1.MachineRuntime") {
		t.Errorf("reflection: %v %v", answer, err)
	}
	_ = stream.CloseSend()
}

// broken is a runtime that panics and one that never answers.
type broken struct {
	iri.UnimplementedMachineRuntimeServer
}

func (broken) Version(context.Context, *iri.VersionRequest) (*iri.VersionResponse, error) {
	panic("boom")
}

func (broken) Status(ctx context.Context, _ *iri.StatusRequest) (*iri.StatusResponse, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, errors.New("no deadline")
	}
	return &iri.StatusResponse{}, nil
}

func TestAPanicIsAnErrorOfThatCallAloneAndEveryCallHasADeadline(t *testing.T) {
	var r rig
	r.serve(t, broken{})
	if _, err := r.client.Version(t.Context(), &iri.VersionRequest{}); status.Code(err) != codes.Internal || strings.Contains(err.Error(), "boom") {
		t.Errorf("panic: %v", err)
	}
	if _, err := r.client.Status(t.Context(), &iri.StatusRequest{}); err != nil {
		t.Errorf("after the panic: %v", err)
	}
}

func TestEveryKindOfFailureHasItsCode(t *testing.T) {
	for kind, want := range kindCodes {
		err := toStatus(fmt.Errorf("do: %w", machine.Errorf(kind, "text")))
		if status.Code(err) != want || !strings.Contains(err.Error(), "text") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if err := toStatus(status.Error(codes.DataLoss, "x")); status.Code(err) != codes.DataLoss {
		t.Error("a status is changed")
	}
}

func TestTheHostIsNeverOverfullHoweverManyAskAtOnce(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Host.CPUs = 7 })
	var created, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			_, err := r.client.CreateMachine(context.Background(), &iri.CreateMachineRequest{Machine: r.new(fmt.Sprint("u", i))})
			switch status.Code(err) {
			case codes.OK:
				created.Add(1)
			case codes.ResourceExhausted:
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if created.Load() != 7 || refused.Load() != 33 || len(r.store.List()) != 7 {
		t.Errorf("%d created, %d refused, %d stored", created.Load(), refused.Load(), len(r.store.List()))
	}
}

func TestCreatingTheSameMachineAtOnceMakesOne(t *testing.T) {
	r := newRig(t, nil)
	ids := make(chan string, 16)
	var wg sync.WaitGroup
	for range cap(ids) {
		wg.Go(func() {
			answer, err := r.client.CreateMachine(context.Background(), &iri.CreateMachineRequest{Machine: r.new("same")})
			if err != nil {
				t.Error(err)
				return
			}
			ids <- answer.Machine.Metadata.Id
		})
	}
	wg.Wait()
	close(ids)
	first := <-ids
	for id := range ids {
		if id != first {
			t.Errorf("two machines: %s and %s", first, id)
		}
	}
}

func TestARepeatedDeleteWritesNothing(t *testing.T) {
	r := newRig(t, nil)
	answer, err := r.client.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: r.new("u")})
	if err != nil {
		t.Fatal(err)
	}
	id := answer.Machine.Metadata.Id
	var version uint64
	for i := range 100 {
		_, err := r.client.DeleteMachine(t.Context(), &iri.DeleteMachineRequest{MachineId: id})
		if want := []codes.Code{codes.OK, codes.Unavailable}[min(i, 1)]; status.Code(err) != want {
			t.Fatalf("delete %d: %v", i, err)
		}
		m, err := r.store.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			version = m.Version
		}
		if m.Version != version {
			t.Fatalf("delete %d wrote", i)
		}
	}
	_, err = r.client.UpdateMachinePower(t.Context(), &iri.UpdateMachinePowerRequest{MachineId: id, Power: iri.Power_POWER_OFF})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("power of a machine being deleted: %v", err)
	}
	_, err = r.client.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: r.new("u")})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("create over a machine being deleted: %v", err)
	}
}

func TestAListOfTenThousandMachinesIsComplete(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Host.CPUs = 1 << 40 })
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := next.Add(1); i <= 10000; i = next.Add(1) {
				m := r.new(fmt.Sprint("u", i))
				m.Spec.IgnitionData = make([]byte, 4096) // 40 MiB together, were it listed
				if _, err := r.server.CreateMachine(context.Background(), &iri.CreateMachineRequest{Machine: m}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	answer, err := r.client.ListMachines(t.Context(), &iri.ListMachinesRequest{}, grpc.MaxCallRecvMsgSize(64<<20))
	if err != nil || len(answer.Machines) != 10000 {
		t.Fatalf("%d machines, %v", len(answer.GetMachines()), err)
	}
}

func TestAnswersOfRemovedMachinesAreForgottenHoweverTheListIsAskedFor(t *testing.T) {
	for name, req := range map[string]*iri.ListMachinesRequest{
		"no filter": {}, "an empty filter": {Filter: &iri.MachineFilter{}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			for i := range 200 {
				answer, err := r.server.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: r.new(fmt.Sprint("u", i))})
				if err != nil {
					t.Fatal(err)
				}
				if err := r.store.Remove(t.Context(), answer.Machine.Metadata.Id); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := r.client.ListMachines(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			if n := len(r.server.cache.answers); n > 64 {
				t.Errorf("%d answers kept of no machine", n)
			}
		})
	}
}

func TestUnknownFieldsAreNoReasonToRefuse(t *testing.T) {
	r := newRig(t, nil)
	m := &iri.Machine{Metadata: &metaapi.ObjectMetadata{}, Spec: &iri.MachineSpec{Class: "small"}}
	m.ProtoReflect().SetUnknown([]byte{0xf8, 0x3f, 0x01}) // field 1023, of a newer client
	if _, err := r.client.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: m}); err != nil {
		t.Error(err)
	}
}

func TestPowerOnStartsAMachineThatItsGuestTurnedOff(t *testing.T) {
	r := newRig(t, nil)
	answer, err := r.client.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: r.new("u")})
	if err != nil {
		t.Fatal(err)
	}
	id, generation := answer.Machine.Metadata.Id, answer.Machine.Metadata.Generation
	on := &iri.UpdateMachinePowerRequest{MachineId: id, Power: iri.Power_POWER_ON}
	turnOn := func() int64 {
		t.Helper()
		if _, err := r.client.UpdateMachinePower(t.Context(), on); err != nil {
			t.Fatal(err)
		}
		m, err := r.store.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		return m.Desired.Generation
	}
	if got := turnOn(); got != generation {
		t.Errorf("on while on raised the generation to %d", got)
	}
	_, err = r.store.UpdateRecord(t.Context(), id, func(rec *machine.Record) error { rec.KeptOff = generation; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if got := turnOn(); got != generation+1 {
		t.Errorf("on after the guest went off: generation %d", got)
	}
	if got := turnOn(); got != generation+1 {
		t.Errorf("on again: generation %d", got)
	}
}
