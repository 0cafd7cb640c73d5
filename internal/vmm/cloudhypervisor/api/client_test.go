// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

// rawServer gives each connection, once its request is read, to serve.
func rawServer(t *testing.T, serve func(net.Conn, *http.Request)) *api.Client {
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
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				serve(conn, req)
			}()
		}
	}()
	return newClient(t, socket)
}

func TestRequestsHaveTheFormThatTheServerTakes(t *testing.T) {
	type seen struct {
		Method, Path, Body string
		Length             int64
		Chunked            bool
	}
	got := make(chan seen, 1)
	c := rawServer(t, func(conn net.Conn, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		got <- seen{req.Method, req.URL.Path, string(body), req.ContentLength, len(req.TransferEncoding) > 0}
		// An empty reason phrase and no Content-Length, as the real server answers.
		io.WriteString(conn, "HTTP/1.1 204 \r\nServer: Cloud Hypervisor API\r\nConnection: keep-alive\r\n\r\n")
	})
	for name, tc := range map[string]struct {
		call func(context.Context) error
		want seen
	}{
		"boot": {c.Boot, seen{Method: "PUT", Path: "/api/v1/vm.boot"}},
		"remove-device": {
			func(ctx context.Context) error { return c.RemoveDevice(ctx, "disk-a") },
			seen{Method: "PUT", Path: "/api/v1/vm.remove-device", Body: `{"id":"disk-a"}`, Length: 15},
		},
		"cold add-disk": {
			func(ctx context.Context) error {
				d, err := c.AddDisk(ctx, api.Disk{ID: "a"})
				if d != (api.PCIDevice{}) {
					t.Errorf("an empty answer became %v", d)
				}
				return err
			},
			seen{Method: "PUT", Path: "/api/v1/vm.add-disk", Body: `{"id":"a","readonly":false}`, Length: 27},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tc.call(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, <-got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func TestABodyThatTheServerWouldNotTakeIsNotSent(t *testing.T) {
	var asked atomic.Int32
	c := rawServer(t, func(conn net.Conn, _ *http.Request) {
		asked.Add(1)
		io.WriteString(conn, "HTTP/1.1 204 \r\n\r\n")
	})
	big := api.VMConfig{Platform: &api.Platform{OEMStrings: []string{strings.Repeat("x", 50_000)}}}
	if err := c.Create(t.Context(), big); !errors.Is(err, api.ErrBodyTooLarge) {
		t.Errorf("error is %v, want ErrBodyTooLarge", err)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestCountersHoldTheGreatestNumber(t *testing.T) {
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"disk-a":{"read_latency_min":18446744073709551615,"read_ops":3}}`)
	})
	got, err := c.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := api.Counters{"disk-a": {"read_latency_min": 1<<64 - 1, "read_ops": 3}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}

func TestInfoIsReadWithNullsAndWithout(t *testing.T) {
	for name, body := range map[string]string{
		"v52": `{"config":{"cpus":{"boot_vcpus":1,"max_vcpus":1},"memory":{"size":1},"disks":null,"net":null,"platform":{"uuid":"u","oem_strings":null}},"state":"Created","device_tree":null}`,
		"v53": `{"config":{"cpus":{"boot_vcpus":1,"max_vcpus":1},"memory":{"size":1},"platform":{"system_uuid":"u"}},"state":"Created"}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := answering(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
			got, err := c.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got.Config.MachineUUID() != "u" || got.State != api.StateCreated || len(got.Config.Disks) != 0 {
				t.Errorf("info is %+v", got)
			}
		})
	}
}

func TestWhatCouldNotBeAskedIsUnavailable(t *testing.T) {
	silent := make(chan struct{})
	defer close(silent)
	reset := func(conn net.Conn, _ *http.Request) { conn.Close() }
	for name, c := range map[string]*api.Client{
		"no socket":           newClient(t, filepath.Join(t.TempDir(), "none")),
		"connection closed":   rawServer(t, reset),
		"answer cut short":    rawServer(t, func(c net.Conn, _ *http.Request) { io.WriteString(c, "HTTP/1.1 200 \r\nContent-Length: 90\r\n\r\n{") }),
		"no answer at all":    rawServer(t, func(net.Conn, *http.Request) { <-silent }),
		"stale socket":        newClient(t, staleSocket(t)),
		"header cut in words": rawServer(t, func(c net.Conn, _ *http.Request) { io.WriteString(c, "HTTP/1.1 20") }),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if _, err := c.Info(ctx); !errors.Is(err, api.ErrUnavailable) {
				t.Errorf("info: error is %v, want ErrUnavailable", err)
			}
		})
	}
}

func staleSocket(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	return path
}

func TestAVMMThatExitsBeforeItAnswersWasShutDown(t *testing.T) {
	c := rawServer(t, func(conn net.Conn, _ *http.Request) { conn.Close() })
	if err := c.ShutdownVMM(t.Context()); err != nil {
		t.Errorf("vmm.shutdown: %v", err)
	}
	if err := c.Boot(t.Context()); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("vm.boot: error is %v, want ErrUnavailable", err)
	}
	gone := newClient(t, staleSocket(t))
	if err := gone.ShutdownVMM(t.Context()); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("vmm.shutdown of nobody: error is %v, want ErrUnavailable", err)
	}
}

func TestTheServersConnectionsAreNotUsedUp(t *testing.T) {
	var open, most atomic.Int32
	release := make(chan struct{})
	c := rawServer(t, func(conn net.Conn, _ *http.Request) {
		n := open.Add(1)
		defer open.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		<-release
		io.WriteString(conn, "HTTP/1.1 204 \r\n\r\n")
	})
	done := make(chan error)
	for range 12 {
		go func() { done <- c.Boot(t.Context()) }()
	}
	for open.Load() < 4 {
		time.Sleep(time.Millisecond)
	}
	close(release)
	for range 12 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := most.Load(); n > 4 {
		t.Errorf("%d connections at once, want at most 4", n)
	}
}

func TestTimeoutsShorterThanTheServersOwnAreRefused(t *testing.T) {
	if _, err := api.New(api.Options{Socket: "s", Timeouts: api.Timeouts{Long: time.Minute}}); err == nil {
		t.Error("a boot may take longer than a minute, yet that is accepted")
	}
	if _, err := api.New(api.Options{}); err == nil {
		t.Error("a client without a socket is accepted")
	}
}
