// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	metaapi "github.com/ironcore-dev/ironcore/iri/apis/meta/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

// loginMarker is what the guest prints when it is up.
const loginMarker = "ready login:"

// uidLabel makes CreateMachine idempotent.
const uidLabel = "machinepoollet.ironcore.dev/machine-uid"

const ignition = `{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/motd","contents":{"source":"data:,hello%20from%20Ignition"}}]}}`

func (d *demo) up(ctx context.Context) error {
	start := time.Now()
	if err := os.MkdirAll(d.dir, 0o750); err != nil {
		return err
	}
	fmt.Println("Everything of this demo lies in", d.dir)
	step(start, "building the demo guest from Debian's kernel and busybox (cached after the first time)")
	files, err := guest.Build(ctx, guest.Options{CacheDir: guest.DefaultCacheDir(), Logger: logger()})
	if err != nil {
		return err
	}
	registry, err := d.ensureRegistry(ctx)
	if err != nil {
		return err
	}
	ref := registry + "/demo/guest:latest"
	step(start, "pushing it as an OCI image to "+ref)
	if _, err := guest.Push(ctx, files, ref, guest.PushOptions{
		PlainHTTP: true, PackOptions: guest.PackOptions{CommandLine: guest.DefaultCommandLine(files.Arch) + " chp.dhcp"},
	}); err != nil {
		return err
	}
	step(start, "starting the daemon, IRI socket "+d.socket())
	if err := d.ensureDaemon(ctx, registry); err != nil {
		return err
	}
	client, err := d.client()
	if err != nil {
		return err
	}
	step(start, "creating the machine over the IRI")
	m, err := create(ctx, client, ref)
	if err != nil {
		return err
	}
	if m, err = d.follow(ctx, start, client, m.Metadata.Id); err != nil {
		return err
	}
	d.describe(m)
	return d.show(ctx, m.Metadata.Id)
}

func step(start time.Time, what string) {
	fmt.Printf("%6.1fs  %s\n", time.Since(start).Seconds(), what)
}

// create asks for the machine; one that is there already is answered with.
func create(ctx context.Context, client iri.MachineRuntimeClient, ref string) (*iri.Machine, error) {
	answer, err := client.CreateMachine(ctx, &iri.CreateMachineRequest{Machine: &iri.Machine{
		Metadata: &metaapi.ObjectMetadata{Labels: map[string]string{
			uidLabel: "demo", "machinepoollet.ironcore.dev/machine-namespace": "default",
			"machinepoollet.ironcore.dev/machine-name": "demo",
		}},
		Spec: &iri.MachineSpec{
			Class: "demo", IgnitionData: []byte(ignition),
			Volumes: []*iri.Volume{{
				Name: "root", Device: "oda", LocalDisk: &iri.LocalDisk{Image: &iri.ImageSpec{Image: ref}, SizeBytes: 64 << 20},
			}},
			NetworkInterfaces: []*iri.NetworkInterface{{Name: "primary"}},
		},
	}})
	if err != nil {
		return nil, fmt.Errorf("create machine: %w", err)
	}
	return answer.Machine, nil
}

// follow prints what happens until the guest shows its login marker.
func (d *demo) follow(ctx context.Context, start time.Time, client iri.MachineRuntimeClient, id string) (*iri.Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	seen, before := map[string]bool{}, iri.MachineState(-1)
	for {
		events, err := client.ListEvents(ctx, &iri.ListEventsRequest{Filter: &iri.EventFilter{Id: id}})
		if err != nil {
			return nil, err
		}
		for _, e := range events.Events {
			line := e.Spec.Reason + ": " + e.Spec.Message
			if !seen[line] {
				seen[line] = true
				step(start, line)
			}
		}
		list, err := client.ListMachines(ctx, &iri.ListMachinesRequest{Filter: &iri.MachineFilter{Id: id}})
		if err != nil {
			return nil, err
		}
		if len(list.Machines) != 1 {
			return nil, errors.New("the machine is gone")
		}
		m := list.Machines[0]
		if m.Status.State != before {
			before = m.Status.State
			step(start, "state "+strings.TrimPrefix(before.String(), "MACHINE_"))
		}
		if before == iri.MachineState_MACHINE_RUNNING && bytes.Contains(d.bootLog(id), []byte(loginMarker)) {
			step(start, "the guest is up")
			return m, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the guest did not come up; see %s and %s", d.path("daemon.log"), d.consoleLog(id))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (d *demo) consoleLog(id string) string { return d.path("state", "machines", id, "console.log") }

// bootLog is the console's output since the guest last booted.
func (d *demo) bootLog(id string) []byte {
	raw, _ := os.ReadFile(d.consoleLog(id))
	if i := bytes.LastIndex(raw, []byte("guest: booting")); i >= 0 {
		return raw[i:]
	}
	return raw
}

func (d *demo) describe(m *iri.Machine) {
	fmt.Printf("\nmachine   %s\nstate     %s\nclass     %s\nimage     %s\n", m.Metadata.Id,
		strings.TrimPrefix(m.Status.State.String(), "MACHINE_"), m.Spec.Class, m.Status.ImageRef)
	for _, v := range m.Status.Volumes {
		fmt.Printf("volume    %s %s (%s)\n", v.Name, strings.TrimPrefix(v.State.String(), "VOLUME_"), v.Handle)
	}
	for _, n := range m.Status.NetworkInterfaces {
		fmt.Printf("network   %s %s (%s)\n", n.Name, strings.TrimPrefix(n.State.String(), "NETWORK_INTERFACE_"), n.Handle)
	}
	fmt.Printf("log       %s\nconsole   bin/cloud-hypervisor-provider console --config %s %s\nstop      make stop\n\n",
		d.path("daemon.log"), d.path("config.yaml"), m.Metadata.Id)
}

// show attaches a terminal to the console; without one it prints the boot log up to the login marker.
func (d *demo) show(ctx context.Context, id string) error {
	if !console.IsTerminal(os.Stdin) || !console.IsTerminal(os.Stdout) {
		text := d.bootLog(id)
		end := bytes.Index(text, []byte(loginMarker)) + len(loginMarker)
		fmt.Printf("%s\n", bytes.ReplaceAll(text[:end], []byte("\r"), nil))
		return nil
	}
	conn, err := console.Dial(ctx, d.path("run", "console.sock"), id, console.AttachOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	fmt.Println("Attached to the machine's console; ^] (Control and ]) leaves it.")
	return console.Interactive(ctx, conn, os.Stdin, os.Stdout)
}

// stop deletes the machine and ends daemon and registry.
func (d *demo) stop(ctx context.Context) error {
	p, err := d.living(ctx, "daemon")
	if err != nil {
		return err
	}
	if p == nil { // only a daemon can take the machine down in order
		if vmms, err := d.leftMachine(ctx); err != nil || vmms == 0 {
			return errors.Join(err, d.end(ctx, "registry"))
		}
		registry, err := d.ensureRegistry(ctx)
		if err != nil {
			return err
		}
		if err := d.ensureDaemon(ctx, registry); err != nil {
			return err
		}
	}
	client, err := d.client()
	if err != nil {
		return err
	}
	if err := deleteAll(ctx, client); err != nil {
		return err
	}
	if err := d.end(ctx, "daemon"); err != nil {
		return err
	}
	fmt.Println("the demo's machine is deleted, daemon and registry are stopped")
	return d.end(ctx, "registry")
}

// leftMachine counts the machine directories of a demo whose daemon is gone.
func (d *demo) leftMachine(context.Context) (int, error) {
	entries, err := os.ReadDir(d.path("state", "machines"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return len(entries), err
}

func deleteAll(ctx context.Context, client iri.MachineRuntimeClient) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		list, err := client.ListMachines(ctx, &iri.ListMachinesRequest{})
		if err != nil || len(list.Machines) == 0 {
			return err
		}
		for _, m := range list.Machines {
			_, err := client.DeleteMachine(ctx, &iri.DeleteMachineRequest{MachineId: m.Metadata.Id})
			if err != nil && status.Code(err) != codes.NotFound {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return errors.New("the machine is not gone after a minute")
		case <-time.After(100 * time.Millisecond):
		}
	}
}
