// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane/record"
)

type runtime struct {
	iri.UnimplementedMachineRuntimeServer
}

func (runtime) Version(_ context.Context, r *iri.VersionRequest) (*iri.VersionResponse, error) {
	return &iri.VersionResponse{RuntimeName: "test", RuntimeVersion: r.Version}, nil
}

func serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	iri.RegisterMachineRuntimeServer(server, runtime{})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	return func() {
		server.Stop()
		<-ended
	}
}

func TestCallsArePassedOnAndRemembered(t *testing.T) {
	dir := t.TempDir()
	stop := serve(t, filepath.Join(dir, "runtime"))
	recorder, err := record.Start(filepath.Join(dir, "recorder"), filepath.Join(dir, "runtime"))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "recorder"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	client := iri.NewMachineRuntimeClient(conn)
	begin := time.Now()
	answer, err := client.Version(t.Context(), &iri.VersionRequest{Version: "1.2"})
	if err != nil || answer.RuntimeName != "test" || answer.RuntimeVersion != "1.2" {
		t.Errorf("%v, %v", answer, err)
	}
	if _, err := client.DeleteMachine(t.Context(), &iri.DeleteMachineRequest{MachineId: "m"}); status.Code(err) != codes.Unimplemented {
		t.Errorf("an error is passed on as %v", err)
	}
	stop()
	if _, err := client.Status(t.Context(), &iri.StatusRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a runtime: %v", err)
	}
	want := []string{"Version {\"version\":\"1.2\"} -> OK", "DeleteMachine {\"machineId\":\"m\"} -> Unimplemented", "Status {} -> Unavailable"}
	calls := recorder.Since(begin)
	if len(calls) != len(want) {
		t.Fatalf("calls %v", calls)
	}
	for i, c := range calls {
		if !strings.HasPrefix(c.String(), want[i]) {
			t.Errorf("call %d is %v", i, c)
		}
	}
	if c, err := recorder.WaitFor(t.Context(), "Status", begin); err != nil || c.Code != codes.Unavailable {
		t.Errorf("%v, %v", c, err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := recorder.Close(); err != nil {
		t.Error(err)
	}
}
