// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/health"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/status"
)

const watchPatience = 30 * time.Second

// freeAddress finds a port that nobody has now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// serving runs the daemon with a hypervisor that can say its version and nothing else.
func serving(t *testing.T) (cfg config.Config, hypervisor string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "chp") // t.TempDir would be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	hypervisor = filepath.Join(dir, "cloud-hypervisor")
	if err := os.WriteFile(hypervisor, []byte("#!/bin/sh\necho cloud-hypervisor v53.0.0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg = config.Default()
	cfg.StateDir, cfg.RuntimeDir, cfg.IRI.Address = filepath.Join(dir, "state"), filepath.Join(dir, "run"), filepath.Join(dir, "iri.sock")
	cfg.Hypervisor.Driver, cfg.Hypervisor.CloudHypervisor.Binary = config.DriverCloudHypervisor, hypervisor
	cfg.Hypervisor.Supervisor, cfg.Log.Level = config.SupervisorChild, "error"
	cfg.MachineClasses.Inline = []class.Class{{Name: "small", Resources: map[string]int64{class.CPU: 1, class.Memory: 1 << 28}}}
	cfg.Servers.HealthAddress, cfg.Servers.MetricsAddress = freeAddress(t), freeAddress(t)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, &cfg) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		case <-time.After(watchPatience):
			t.Error("the daemon does not end")
		}
	})
	return cfg, hypervisor
}

func fetch(address, path string) (int, string) {
	client := http.Client{Timeout: watchPatience, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get("http://" + address + path)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}

func awaitCode(t *testing.T, address, path string, want int) string {
	t.Helper()
	deadline := time.Now().Add(watchPatience)
	for {
		code, body := fetch(address, path)
		if code == want {
			return body
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %d %s, want %d", path, code, body, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestTheDaemonTellsHowItIs(t *testing.T) {
	cfg, hypervisor := serving(t)
	awaitCode(t, cfg.Servers.HealthAddress, health.ReadyPath, http.StatusOK)
	awaitCode(t, cfg.Servers.HealthAddress, health.LivePath, http.StatusOK)
	for _, path := range []string{"/metrics", "/statusz", "/debug/pprof/"} {
		if code, _ := fetch(cfg.Servers.HealthAddress, path); code != http.StatusNotFound {
			t.Errorf("%s where everybody may ask: %d", path, code)
		}
	}
	text := awaitCode(t, cfg.Servers.MetricsAddress, "/metrics", http.StatusOK)
	for _, want := range []string{
		`chp_driver_info{accelerator="kvm",chosen="true",driver="cloud-hypervisor",version="53.0.0"} 1`,
		`chp_machines{class="small",state="Running"} 0`, `chp_health_check_ok{check="iri"} 1`, "grpc_server_handled_total",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	var page status.Page
	if err := json.Unmarshal([]byte(awaitCode(t, cfg.Servers.MetricsAddress, "/statusz?format=json", http.StatusOK)), &page); err != nil {
		t.Fatal(err)
	}
	if !page.Ready.OK || page.Version != version || page.Drivers[0].Binary != hypervisor || len(page.Classes) != 1 {
		t.Errorf("status: %+v", page)
	}
	if err := os.Rename(hypervisor, hypervisor+".away"); err != nil {
		t.Fatal(err)
	}
	if body := awaitCode(t, cfg.Servers.HealthAddress, health.LivePath, http.StatusServiceUnavailable); !strings.Contains(body, hypervisor+" is gone") {
		t.Errorf("without a hypervisor: %s", body)
	}
	if err := os.Rename(hypervisor+".away", hypervisor); err != nil {
		t.Fatal(err)
	}
	awaitCode(t, cfg.Servers.HealthAddress, health.LivePath, http.StatusOK)
}
