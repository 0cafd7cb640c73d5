// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"debug/elf"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech"
)

// machines is how many VMMs the restart is measured with; each is a process of some MiB.
const machines = 1000

const config = `apiVersion: config.cloud-hypervisor-provider.ironcore.dev/v1alpha1
kind: ProviderConfig
stateDir: %[1]s/state
runtimeDir: %[1]s/run
iri: {address: %[1]s/iri.sock}
streaming: {address: "127.0.0.1:0"}
servers: {healthAddress: "", metricsAddress: ""}
hypervisor: {driver: cloud-hypervisor, supervisor: child, cloudHypervisor: {binary: %[2]s, firmware: %[1]s/firmware}}
machineClasses:
  inline: [{metadata: {name: small}, capabilities: {cpu: 1, memory: 1Mi}}]
capacity: {cpuOvercommit: 1000, reservedMemory: 0, memoryOverheadPerMachine: 0}
log: {level: warn}
`

// build makes the daemon as "make build" does.
func build(tb testing.TB, dir string) string {
	tb.Helper()
	path := filepath.Join(dir, "daemon")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "../../cmd/cloud-hypervisor-provider")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%v\n%s", err, out)
	}
	return path
}

func TestTheBinaryIsStaticAndSmall(t *testing.T) {
	path := build(t, t.TempDir())
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if mb := info.Size() / 1e6; mb > 40 {
		t.Errorf("%d MB", mb)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
		t.Errorf("not static: needs %v (%v)", libs, err)
	}
}

// daemon is the built daemon with fake VMMs.
type daemon struct {
	tb     testing.TB
	dir    string
	binary string
	cmd    *exec.Cmd
	conn   *grpc.ClientConn
	iri.MachineRuntimeClient
}

func newDaemon(tb testing.TB) *daemon {
	tb.Helper()
	dir, err := os.MkdirTemp("", "chpb")
	if err != nil {
		tb.Fatal(err)
	}
	fake, err := fakech.Build(tb.Context(), dir)
	if err != nil {
		tb.Fatal(err)
	}
	d := &daemon{tb: tb, dir: dir, binary: build(tb, dir)}
	firmware := append([]byte("\x7fELF"), make([]byte, 1<<20)...) // the fake opens it, no more
	if err := os.WriteFile(filepath.Join(dir, "firmware"), firmware, 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), fmt.Appendf(nil, config, dir, fake), 0o600); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		d.stop(syscall.SIGKILL)
		_ = exec.Command("pkill", "-KILL", "-f", dir).Run() // the VMMs carry the directory in their arguments
		_ = os.RemoveAll(dir)
	})
	return d
}

// start runs the daemon and returns how long it took until its socket answered.
func (d *daemon) start() time.Duration {
	d.tb.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.tb.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	d.cmd = exec.Command(d.binary, "serve", "--config", filepath.Join(d.dir, "config.yaml"))
	d.cmd.Stderr = log
	begin := time.Now()
	if err := d.cmd.Start(); err != nil {
		d.tb.Fatal(err)
	}
	socket := filepath.Join(d.dir, "iri.sock")
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Since(begin) > time.Minute {
			raw, _ := os.ReadFile(filepath.Join(d.dir, "log"))
			d.tb.Fatalf("the daemon does not open its socket:\n%s", raw)
		}
		time.Sleep(time.Millisecond)
	}
	took := time.Since(begin)
	if d.conn, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		d.tb.Fatal(err)
	}
	d.MachineRuntimeClient = iri.NewMachineRuntimeClient(d.conn)
	return took
}

func (d *daemon) stop(sig syscall.Signal) {
	if d.cmd == nil {
		return
	}
	if d.conn != nil {
		_ = d.conn.Close()
		d.conn = nil
	}
	_ = d.cmd.Process.Signal(sig)
	_ = d.cmd.Wait()
	d.cmd = nil
}

func (d *daemon) running() int {
	d.tb.Helper()
	answer, err := d.ListMachines(context.Background(), &iri.ListMachinesRequest{}, grpc.MaxCallRecvMsgSize(64<<20))
	if err != nil {
		d.tb.Fatal(err)
	}
	n := 0
	for _, m := range answer.Machines {
		if m.Status.State == iri.MachineState_MACHINE_RUNNING {
			n++
		}
	}
	return n
}

// rss is the daemon's resident memory in MiB.
func (d *daemon) rss() float64 {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	for line := range strings.Lines(string(raw)) {
		if kib, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.Atoi(strings.Fields(kib)[0])
			return float64(n) / 1024
		}
	}
	return 0
}

// BenchmarkIdleDaemon: at most 40 MiB.
func BenchmarkIdleDaemon(b *testing.B) {
	d := newDaemon(b)
	var most float64
	for b.Loop() {
		d.start()
		time.Sleep(time.Second)
		most = max(most, d.rss())
		d.stop(syscall.SIGTERM)
	}
	b.ReportMetric(most, "MiB-rss")
}

// BenchmarkRestartWith1000Machines: ready in at most 1 s, counted from the start of the process until the socket
// answers. The VMMs are fake ones, each a process of its own, and live through the restart.
func BenchmarkRestartWith1000Machines(b *testing.B) {
	d := newDaemon(b)
	d.start()
	var n atomic.Int64
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for i := n.Add(1); i <= machines; i = n.Add(1) {
				m := newMachine(i)
				m.Spec.Volumes, m.Spec.NetworkInterfaces = []*iri.Volume{{Name: "data", LocalDisk: &iri.LocalDisk{SizeBytes: 1 << 20}}}, nil
				if _, err := d.CreateMachine(context.Background(), &iri.CreateMachineRequest{Machine: m}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
	for begin := time.Now(); d.running() < machines; time.Sleep(100 * time.Millisecond) {
		if time.Since(begin) > 3*time.Minute {
			b.Fatalf("%d machines run", d.running())
		}
	}
	var ready time.Duration
	for b.Loop() {
		d.stop(syscall.SIGKILL)
		ready += d.start()
		if n := d.running(); n != machines { // no flicker: what ran is shown as running at once
			b.Errorf("%d machines shown as running", n)
		}
	}
	b.ReportMetric(ready.Seconds()/float64(b.N), "s-ready")
	b.ReportMetric(d.rss(), "MiB-rss")
}
