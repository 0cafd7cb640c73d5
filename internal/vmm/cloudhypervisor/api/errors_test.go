// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

// answering serves every request on a Unix socket with one handler.
func answering(t *testing.T, h http.HandlerFunc) *api.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "chapi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return newClient(t, socket)
}

func newClient(t *testing.T, socket string) *api.Client {
	t.Helper()
	c, err := api.New(api.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestAnErrorMeansTheSameInEveryDialect(t *testing.T) {
	const from = `["Error from API",`
	tests := map[string]struct {
		statuses []int // up to v52, v53, later
		body     string
		want     error
	}{
		"info of no VM":              {[]int{500, 404, 404}, from + `"The VM info is not available","VM is not created"]`, api.ErrNotCreated},
		"boot of no VM":              {[]int{500, 404, 404}, from + `"The VM could not boot","VM config is missing"]`, api.ErrNotCreated},
		"shutdown of a stopped VM":   {[]int{500, 500, 500}, from + `"The VM could not shutdown","VM is not running"]`, api.ErrNotRunning},
		"second create":              {[]int{500, 500, 500}, from + `"The VM could not be created","VM is already created"]`, api.ErrAlreadyCreated},
		"duplicate id":               {[]int{500, 500, 409}, from + `"Failed to validate config","Identifier a is not unique"]`, api.ErrDuplicateID},
		"id that waits for eject":    {[]int{500, 500, 500}, from + `"The disk could not be added to the VM","Error from device manager","Invalid identifier as it is not unique: a"]`, api.ErrRemovalPending},
		"unknown device":             {[]int{500, 500, 404}, from + `"Error from device manager","Failed to find device corresponding to the given identifier: a"]`, api.ErrUnknownDevice},
		"unknown device before boot": {[]int{500, 500, 404}, from + `"No device with id \"a\" to remove"]`, api.ErrUnknownDevice},
		"fixed device":               {[]int{500, 500, 500}, from + `"Not allowed to remove this type of device from the VM: rng"]`, api.ErrNotRemovable},
		"missing disk":               {[]int{500, 500, 500}, from + `"Cannot open disk path","I/O error (path=/x op=open)","No such file or directory (os error 2)"]`, api.ErrMissingFile},
		"other image type":           {[]int{500, 500, 500}, from + `"Disk image type does not match expected type: specified = qcow2, detected = raw"]`, api.ErrImageType},
		"locked disk":                {[]int{500, 500, 500}, from + `"The VM could not boot","Error locking disk images: Another instance likely holds a lock","Cannot lock images of all block devices","Failed to get Write lock for disk image: /x","The file is already locked"]`, api.ErrLocked},
		"locked disk at hot-add":     {[]int{500, 500, 500}, from + `"The disk could not be added to the VM","Error from device manager","Cannot lock images of all block devices","Failed to get Write lock for disk image: /x"]`, api.ErrLocked},
		"full bus":                   {[]int{500, 500, 500}, from + `"Failed to find an available PCI device ID","Could not find an available device slot on the PCI bus"]`, api.ErrNoSlot},
		"stale socket":               {[]int{500, 500, 500}, from + `"The VM could not be created","Error creating console devices","Error creating console device","Address already in use (os error 98)"]`, api.ErrSocketInUse},
		"no payload":                 {[]int{500, 500, 400}, from + `"Failed to validate config","Payload configuration is not bootable","No bootitem provided: neither firmware nor kernel"]`, api.ErrInvalidConfig},
		"serial too long":            {[]int{500, 500, 400}, from + `"Failed to validate config","Block device serial length (21) exceeds maximum allowed length (20)"]`, api.ErrInvalidConfig},
		"second pause":               {[]int{500, 500, 500}, from + `"The VM could not be paused","Cannot pause VM","Failed to pause migratable component","Invalid transition: InvalidStateTransition(Paused, Paused)"]`, api.ErrWrongState},
		"pending vCPU removal":       {[]int{429, 429, 429}, `["Too Many Requests"]`, api.ErrBusy},
		"eleventh connection":        {[]int{503, 503, 503}, `{ "error": "Too many open connections" }`, api.ErrNoConnection},
		"unknown path":               {[]int{404, 404, 404}, `["Not Found"]`, api.ErrUnknownCall},
		"bad JSON":                   {[]int{400, 400, 400}, `["Failed to deserialize JSON","missing field 'size' at line 1 column 3"]`, api.ErrBadRequest},
	}
	for name, tc := range tests {
		for i, status := range tc.statuses {
			dialect := []string{"v52", "v53", "later"}[i]
			t.Run(name+" in "+dialect, func(t *testing.T) {
				c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(status)
					w.Write([]byte(tc.body))
				})
				err := c.Boot(t.Context())
				if !errors.Is(err, tc.want) {
					t.Fatalf("error is %v, want %v", err, tc.want)
				}
				if errors.Is(err, api.ErrUnavailable) {
					t.Error("an answer is taken for silence")
				}
				var e *api.Error
				if !errors.As(err, &e) || e.Status != status {
					t.Errorf("status %d is lost in %#v", status, err)
				}
			})
		}
	}
}

func TestAnUnknownErrorKeepsItsText(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"array":      {`["Error from API","Something new"]`, "vm.boot: Error from API: Something new"},
		"object":     {`{ "error": "Invalid HTTP Method: POST" }`, "vm.boot: Invalid HTTP Method: POST"},
		"plain text": {"VmBoot(Unknown)\n", "vm.boot: VmBoot(Unknown)"},
		"nothing":    {"", "vm.boot: HTTP status 500"},
	} {
		t.Run(name, func(t *testing.T) {
			c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusInternalServerError)
				w.Write([]byte(tc.body))
			})
			err := c.Boot(t.Context())
			if err == nil || err.Error() != tc.want {
				t.Errorf("error is %q, want %q", err, tc.want)
			}
		})
	}
}
