// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

// Intervals of the checks that cost something: a synced write, a look at all processes, a process.
const (
	writeInterval      = 5 * time.Second
	supervisorInterval = 10 * time.Second
	binaryInterval     = time.Minute
)

// connectTimeout is how long a connection to the IRI socket may take; what is asked over it has a time of its own.
const connectTimeout = 20 * time.Second

// Store is what is asked of the store.
type Store interface {
	Healthy() error
	WriteProbe(ctx context.Context) error
}

// StoreChecks are "store", whether the last write succeeded, and "store-write", which writes.
func StoreChecks(s Store) []Check {
	return []Check{
		{Name: "store", For: Live, MaxAge: time.Nanosecond, Probe: func(context.Context) error { return s.Healthy() }},
		{Name: "store-write", For: Live, MaxAge: writeInterval, Timeout: 10 * time.Second, Background: true, Probe: s.WriteProbe},
	}
}

// nobody is a marker that no process carries; those of VMMs begin with the store's UUID.
const nobody = "health-check-nobody"

// Supervisor is what is asked of the process supervisor.
type Supervisor interface {
	Find(ctx context.Context, marker string) ([]process.Identity, error)
}

// SupervisorCheck is "supervisor": it looks for a process that is not there.
func SupervisorCheck(s Supervisor) Check {
	return Check{
		Name: "supervisor", For: Live, MaxAge: supervisorInterval, Timeout: 10 * time.Second, Background: true,
		Probe: func(ctx context.Context) error {
			found, err := s.Find(ctx, nobody)
			if err == nil && len(found) > 0 {
				err = fmt.Errorf("found process %d, which cannot be", found[0].PID)
			}
			return err
		},
	}
}

// DriverChecks are "driver", whether the hypervisor's executable is there, and "driver-runs", which runs it for its
// version.
func DriverChecks(path string) []Check {
	return []Check{
		{Name: "driver", For: Live, Probe: func(context.Context) error { return executable(path) }},
		{
			Name: "driver-runs", For: Live, MaxAge: binaryInterval, Timeout: 20 * time.Second, Background: true,
			Probe: func(ctx context.Context) error { return runs(ctx, path) },
		},
	}
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is gone", path)
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not executable", path)
	}
	return nil
}

func runs(ctx context.Context, path string) error {
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("run %s --version: %w: %.200s", path, err, first)
	}
	return nil
}

// IRICheck is "iri": a call over the IRI socket and back. It should be added once the socket is open.
func IRICheck(address string, purpose Purpose) (Check, error) {
	conn, err := grpc.NewClient("unix:"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second},
			// Else a server too busy to greet within the delay would be hung up on, again and again.
			MinConnectTimeout: connectTimeout,
		}))
	if err != nil {
		return Check{}, fmt.Errorf("make a client of the IRI: %w", err)
	}
	client := healthapi.NewHealthClient(conn)
	return Check{
		Name: "iri", For: purpose, Close: func() { _ = conn.Close() },
		Probe: func(ctx context.Context) error {
			answer, err := client.Check(ctx, &healthapi.HealthCheckRequest{})
			if err == nil && answer.GetStatus() != healthapi.HealthCheckResponse_SERVING {
				err = fmt.Errorf("the IRI server says %s", answer.GetStatus())
			}
			return err
		},
	}, nil
}
