// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

// demo is the demo's directory and the processes that belong to it.
type demo struct {
	dir  string
	sup  process.Supervisor
	conn *grpc.ClientConn
}

func newDemo() (*demo, error) {
	dir, err := directory()
	if err != nil {
		return nil, err
	}
	sup, err := process.NewChild(process.Options{})
	if err != nil {
		return nil, err
	}
	return &demo{dir: dir, sup: sup}, nil
}

func (d *demo) close() {
	if d.conn != nil {
		_ = d.conn.Close()
	}
	_ = d.sup.Close()
}

func (d *demo) path(parts ...string) string {
	return filepath.Join(append([]string{d.dir}, parts...)...)
}
func (d *demo) socket() string { return d.path("iri.sock") }

// marker is what a process of the demo carries in its environment.
func (d *demo) marker(name string) string { return "chp-demo" + d.dir + "/" + name }

// living returns the demo's process of that name, nil if there is none.
func (d *demo) living(ctx context.Context, name string) (process.Process, error) {
	found, err := d.sup.Find(ctx, d.marker(name))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	p, err := d.sup.Adopt(ctx, found[0])
	if errors.Is(err, process.ErrGone) {
		return nil, nil
	}
	return p, err
}

func (d *demo) start(ctx context.Context, name string, argv ...string) error {
	_, err := d.sup.Start(ctx, process.Spec{
		Name: "chp-demo-" + name, Marker: d.marker(name), Argv: argv, Output: d.path(name + ".log"), Dir: d.dir,
		Env: os.Environ(),
	})
	return err
}

// end asks every process of the demo with that name to end and waits for it. There are several if somebody removed the
// directory under a running demo.
func (d *demo) end(ctx context.Context, name string) error {
	for {
		p, err := d.living(ctx, name)
		if err != nil || p == nil {
			return err
		}
		if err := p.Signal(ctx, syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		select {
		case <-p.Done():
		case <-time.After(30 * time.Second):
			return fmt.Errorf("%s does not end; see %s", name, d.path(name+".log"))
		}
	}
}

// ensureRegistry starts the registry unless it runs, and returns its address.
func (d *demo) ensureRegistry(ctx context.Context) (string, error) {
	raw, _ := os.ReadFile(d.path("registry.address"))
	address := strings.TrimSpace(string(raw))
	p, err := d.living(ctx, "registry")
	if err != nil {
		return "", err
	}
	if p != nil && address != "" {
		return address, nil
	}
	if address, err = freeAddress(address); err != nil {
		return "", err
	}
	if err := os.WriteFile(d.path("registry.address"), []byte(address+"\n"), 0o600); err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if err := d.start(ctx, "registry", self, "registry", address, d.path("registry")); err != nil {
		return "", err
	}
	return address, d.reachable(ctx, "registry", "tcp", address)
}

// freeAddress returns the wanted loopback address if nobody has it, else another.
func freeAddress(wanted string) (string, error) {
	if wanted == "" {
		wanted = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", wanted)
	if err != nil {
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return "", err
		}
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

// reachable waits until something listens, and tells what the process said if it ended instead.
func (d *demo) reachable(ctx context.Context, name, network, address string) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		conn, err := net.Dial(network, address)
		if err == nil {
			return conn.Close()
		}
		p, findErr := d.living(ctx, name)
		if findErr != nil {
			return findErr
		}
		if p == nil || time.Now().After(deadline) {
			return fmt.Errorf("%s did not start; it said:\n%s", name, tail(d.path(name+".log"), 2048))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func tail(path string, most int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	raw, _ := io.ReadAll(f)
	return string(raw)
}

// daemonConfig is the whole configuration of the demo's daemon.
const daemonConfig = `apiVersion: config.cloud-hypervisor-provider.ironcore.dev/v1alpha1
kind: ProviderConfig
stateDir: %[1]s/state
runtimeDir: %[1]s/run
iri:
  address: %[1]s/iri.sock
hypervisor:
  driver: %[2]s
machineClasses:
  inline:
    - metadata: {name: demo}
      capabilities:
        cpu: 1
        memory: 256Mi
network:
  plugin: %[3]s
images:
  plainHTTP: [%[4]q]
streaming: {address: ""} # off, as below
servers: # off, so that the demo runs beside another daemon
  healthAddress: ""
  metricsAddress: ""
`

// choice is what the demo's daemon is configured with, and why in a few words.
type choice struct{ driver, network, why string }

// choose picks what works for whoever runs this: Cloud Hypervisor needs root here, for the tap of its interface.
func choose(ctx context.Context) (choice, error) {
	decision, err := host.Choose(ctx, host.Wants{Hypervisor: host.Auto})
	if err != nil {
		return choice{}, err
	}
	if decision.Driver == host.CloudHypervisor && os.Getuid() == 0 {
		return choice{decision.Driver, "isolated", "Cloud Hypervisor " + decision.Binary.Version}, nil
	}
	because := "Cloud Hypervisor is here, but its network needs root"
	if decision.Driver == host.CloudHypervisor {
		if decision, err = host.Choose(ctx, host.Wants{Hypervisor: host.QEMU}); err != nil {
			return choice{}, err
		}
	} else {
		because, _, _ = strings.Cut(decision.Reasons[0], " (")
	}
	return choice{host.QEMU, "user", fmt.Sprintf("QEMU %s with %s; %s", decision.Binary.Version, decision.Accelerator, because)}, nil
}

// ensureDaemon starts the daemon, or replaces one that was built or configured otherwise. Guests do not notice.
func (d *demo) ensureDaemon(ctx context.Context, say sayFunc, registry string) error {
	chosen, err := choose(ctx)
	if err != nil {
		return err
	}
	say("hypervisor  %s", chosen.why)
	config := fmt.Sprintf(daemonConfig, d.dir, chosen.driver, chosen.network, registry)
	before, _ := os.ReadFile(d.path("config.yaml"))
	p, err := d.living(ctx, "daemon")
	if err != nil {
		return err
	}
	verb := "runs already"
	if p != nil && (string(before) != config || replaced(p.Identity().PID)) {
		if err := d.end(ctx, "daemon"); err != nil {
			return err
		}
		p, verb = nil, "restarted, as it was built or configured anew"
	} else if p == nil {
		verb = "started"
	}
	if p == nil {
		if err := d.startDaemon(ctx, config); err != nil {
			return err
		}
	}
	if err := d.reachable(ctx, "daemon", "unix", d.socket()); err != nil {
		return err
	}
	say("daemon      %s, IRI socket %s", verb, d.socket())
	return nil
}

func (d *demo) startDaemon(ctx context.Context, config string) error {
	if err := os.WriteFile(d.path("config.yaml"), []byte(config), 0o600); err != nil {
		return err
	}
	binary, err := filepath.Abs("bin/cloud-hypervisor-provider")
	if err != nil {
		return err
	}
	return d.start(ctx, "daemon", binary, "serve", "--config", d.path("config.yaml"))
}

// replaced reports whether the program of a process was built anew since it started.
func replaced(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err != nil || strings.HasSuffix(exe, " (deleted)")
}

func (d *demo) client() (iri.MachineRuntimeClient, error) {
	if d.conn == nil {
		conn, err := grpc.NewClient("unix://"+d.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		d.conn = conn
	}
	return iri.NewMachineRuntimeClient(d.conn), nil
}
