// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"strings"
	"testing"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// consoleURLs answers with a made-up URL or with its error.
type consoleURLs []error

func (c consoleURLs) URL(machineID string) (string, error) {
	if len(c) > 0 {
		return "", c[0]
	}
	return "http://127.0.0.1:20251/exec/" + machineID, nil
}

func TestExecAnswersForRunningMachines(t *testing.T) {
	for name, tc := range map[string]struct {
		exec  Exec
		state machine.State
		want  codes.Code
	}{
		"running":                        {consoleURLs(nil), machine.Running, codes.OK},
		"pending":                        {consoleURLs(nil), machine.Pending, codes.FailedPrecondition},
		"off":                            {consoleURLs(nil), machine.Suspended, codes.FailedPrecondition},
		"going down":                     {consoleURLs(nil), machine.Terminating, codes.FailedPrecondition},
		"the server is off":              {nil, machine.Running, codes.Unimplemented},
		"the server has no address":      {consoleURLs{machine.Errorf(machine.Unavailable, "x")}, machine.Running, codes.Unavailable},
		"the server has no room for one": {consoleURLs{machine.Errorf(machine.Exhausted, "x")}, machine.Running, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.Exec = tc.exec })
			created, err := r.client.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: r.new("u")})
			if err != nil {
				t.Fatal(err)
			}
			id := created.Machine.Metadata.Id
			if _, err := r.store.UpdateRecord(t.Context(), id, func(rec *machine.Record) error {
				rec.State = tc.state
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			answer, err := r.client.Exec(t.Context(), &iri.ExecRequest{MachineId: id})
			if status.Code(err) != tc.want {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if err == nil && !strings.HasSuffix(answer.Url, id) {
				t.Errorf("URL %q", answer.Url)
			}
		})
	}
}
