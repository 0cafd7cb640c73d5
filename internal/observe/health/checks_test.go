// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/health"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

func TestTheExecutableOfTheDriverIsAsked(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct{ path, there, runs string }{
		"one that works":    {path: write("good", "#!/bin/sh\necho 1.0\n", 0o755)},
		"one that is gone":  {path: filepath.Join(dir, "absent"), there: "is gone", runs: "no such file"},
		"one without right": {path: write("plain", "", 0o644), there: "is not executable", runs: "permission denied"},
		"one that fails":    {path: write("bad", "#!/bin/sh\necho library missing >&2\nexit 3\n", 0o755), runs: "exit status 3: library missing"},
	} {
		t.Run(name, func(t *testing.T) {
			for i, want := range []string{c.there, c.runs} {
				err := health.DriverChecks(c.path)[i].Probe(t.Context())
				if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("check %d: %v, want %q", i, err, want)
				}
			}
		})
	}
}

func TestTheSupervisorLooksForNobody(t *testing.T) {
	s, err := process.Auto(t.Context(), process.Options{Kind: process.KindChild})
	if err != nil {
		t.Fatal(err)
	}
	if err := health.SupervisorCheck(s).Probe(t.Context()); err != nil {
		t.Error(err)
	}
	_ = s.Close()
	for name, finder := range map[string]finder{
		"one that cannot look":      {err: errors.New("no bus")},
		"one that finds the absent": {found: []process.Identity{{PID: 7}}},
	} {
		if health.SupervisorCheck(finder).Probe(t.Context()) == nil {
			t.Errorf("%s is healthy", name)
		}
	}
}

type finder struct {
	found []process.Identity
	err   error
}

func (f finder) Find(context.Context, string) ([]process.Identity, error) { return f.found, f.err }

func TestAStoreThatCannotWriteIsNotHealthy(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	r := registry(t, health.Options{}, health.StoreChecks(s)...)
	if report := r.Report(t.Context(), health.Live); !report.OK {
		t.Errorf("%+v", report)
	}
	_ = s.Close()
	r = registry(t, health.Options{}, health.StoreChecks(s)...)
	if report := r.Report(t.Context(), health.Live); report.OK {
		t.Errorf("a closed store: %+v", report)
	}
}

func TestTheIRISocketIsAskedOverTheSocket(t *testing.T) {
	address := filepath.Join(t.TempDir(), "s")
	check, err := health.IRICheck(address, health.Ready)
	if err != nil {
		t.Fatal(err)
	}
	r := registry(t, health.Options{}, check)
	if code, _ := get(t, r, "/readyz"); code != 503 {
		t.Errorf("without a socket: %d", code)
	}
	listener, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	healthapi.RegisterHealthServer(server, grpchealth.NewServer())
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	deadline := time.Now().Add(30 * time.Second)
	for code := 0; code != 200; code, _ = get(t, r, "/readyz") {
		if time.Now().After(deadline) {
			t.Fatal("never ready")
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// late greets nobody at once.
type late struct{ net.Listener }

func (l late) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	time.Sleep(1500 * time.Millisecond)
	return conn, err
}

// The client hung up after 100 ms, and after a second at most, on a server that was too busy to greet it.
func TestAnIRIServerThatIsSlowToGreetIsNotDead(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	healthapi.RegisterHealthServer(server, grpchealth.NewServer())
	go func() { _ = server.Serve(late{listener}) }()
	defer server.Stop()
	check, err := health.IRICheck(listener.Addr().String(), health.Live)
	if err != nil {
		t.Fatal(err)
	}
	defer check.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for err := check.Probe(ctx); err != nil; err = check.Probe(ctx) {
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

type nothing struct{}

func (nothing) Healthy() error                                           { return nil }
func (nothing) WriteProbe(context.Context) error                         { time.Sleep(20 * time.Millisecond); return nil }
func (nothing) Find(context.Context, string) ([]process.Identity, error) { return nil, nil }

// BenchmarkHealthz asks as an eager prober does, on a server with 1,000 machines of which a tenth is stuck. The bound
// is 50 ms for 99 of 100.
func BenchmarkHealthz(b *testing.B) {
	m := &many{stuck: func(id string) bool { return strings.HasSuffix(id, "7") }}
	for i := range 1000 {
		m.ids = append(m.ids, fmt.Sprintf("%04d", i))
	}
	path := filepath.Join(b.TempDir(), "vmm")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		b.Fatal(err)
	}
	checks := append(health.StoreChecks(nothing{}), health.SupervisorCheck(nothing{}), health.VMMCheck(m))
	r := registry(b, health.Options{}, append(checks, health.DriverChecks(path)...)...)
	get(b, r, health.LivePath)
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		w := httptest.NewRecorder()
		r.Handler().ServeHTTP(w, httptest.NewRequest("GET", health.LivePath, nil))
		took = append(took, time.Since(start))
		if w.Code != 200 {
			b.Fatal(w.Body)
		}
	}
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	b.ReportMetric(float64(p99.Microseconds())/1000, "p99-ms")
	if p99 > 50*time.Millisecond {
		b.Errorf("p99 is %s, want at most 50ms", p99)
	}
}
