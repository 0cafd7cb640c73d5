// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	eventapi "github.com/ironcore-dev/ironcore/iri/apis/event/v1alpha1"
	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	metaapi "github.com/ironcore-dev/ironcore/iri/apis/meta/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

// loginMarker is what the guest prints when it is up.
const loginMarker = "ready login:"

// uidLabel makes CreateMachine idempotent.
const uidLabel = "machinepoollet.ironcore.dev/machine-uid"

const ignition = `{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/motd","contents":{"source":"data:,hello%20from%20Ignition"}}]}}`

func (d *demo) up(ctx context.Context) error {
	if err := makeDirectory(d.dir); err != nil {
		return err
	}
	say := sayer(time.Now())
	say("directory   %s", d.dir)
	files, err := guest.Build(ctx, guest.Options{CacheDir: guest.DefaultCacheDir(), Logger: slog.New(say)})
	if err != nil {
		return err
	}
	registry, err := d.ensureRegistry(ctx)
	if err != nil {
		return err
	}
	ref := registry + "/demo/guest:latest"
	if _, err := guest.Push(ctx, files, ref, guest.PushOptions{
		PlainHTTP: true, PackOptions: guest.PackOptions{CommandLine: guest.DefaultCommandLine(files.Arch) + " chp.dhcp"},
	}); err != nil {
		return err
	}
	say("image       %s, a registry on loopback", ref)
	if err := d.ensureDaemon(ctx, say, registry); err != nil {
		return err
	}
	client, err := d.client()
	if err != nil {
		return err
	}
	m, seen, err := ensureMachine(ctx, say, client, ref)
	if err != nil {
		return err
	}
	if m, err = d.follow(ctx, say, client, m.Metadata.Id, seen); err != nil {
		return err
	}
	d.describe(m)
	return d.show(ctx, m.Metadata.Id)
}

// ensureMachine takes the machine of an earlier run, or creates it. What the earlier run told is returned as seen.
func ensureMachine(
	ctx context.Context, say sayFunc, client iri.MachineRuntimeClient, ref string,
) (m *iri.Machine, seen map[string]bool, err error) {
	list, err := client.ListMachines(ctx, &iri.ListMachinesRequest{
		Filter: &iri.MachineFilter{LabelSelector: map[string]string{uidLabel: "demo"}},
	})
	if err != nil {
		return nil, nil, err
	}
	seen = map[string]bool{}
	if len(list.Machines) == 0 {
		m, err = create(ctx, client, ref)
		if err == nil {
			say("machine     created over the IRI")
		}
		return m, seen, err
	}
	m = list.Machines[0]
	events, err := client.ListEvents(ctx, &iri.ListEventsRequest{Filter: &iri.EventFilter{Id: m.Metadata.Id}})
	if err != nil {
		return nil, nil, err
	}
	for _, e := range events.Events {
		seen[eventLine(e)] = true
	}
	switch {
	case m.Spec.Power == iri.Power_POWER_OFF:
		say("machine     reusing the one that is there; it is off, turning it on")
		_, err = client.UpdateMachinePower(ctx, &iri.UpdateMachinePowerRequest{
			MachineId: m.Metadata.Id, Power: iri.Power_POWER_ON,
		})
	case m.Status.State == iri.MachineState_MACHINE_RUNNING:
		say("machine     reusing the one that runs")
	default:
		say("machine     reusing the one that is there")
	}
	return m, seen, err
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

// eventLine is an event without its time.
func eventLine(e *eventapi.Event) string {
	return fmt.Sprintf("event       %s: %s", e.Spec.Reason, e.Spec.Message)
}

// follow prints what happens until the guest shows its login marker.
func (d *demo) follow(
	ctx context.Context, say sayFunc, client iri.MachineRuntimeClient, id string, seen map[string]bool,
) (*iri.Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	before := iri.MachineState(-1)
	for {
		events, err := client.ListEvents(ctx, &iri.ListEventsRequest{Filter: &iri.EventFilter{Id: id}})
		if err != nil {
			return nil, err
		}
		for _, e := range events.Events {
			if line := eventLine(e); !seen[line] {
				seen[line] = true
				say("%s", line)
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
			say("state       %s", strings.TrimPrefix(before.String(), "MACHINE_"))
		}
		if before == iri.MachineState_MACHINE_RUNNING && bytes.Contains(d.bootLog(id), []byte(loginMarker)) {
			say("guest       is up")
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

// bootLog is the console's output since the machine's process last started; it is empty as long as that one is silent.
func (d *demo) bootLog(id string) []byte {
	info, err := os.Stat(d.consoleLog(id))
	if err != nil || info.ModTime().Before(d.launched(id)) {
		return nil
	}
	rotated, _ := os.ReadFile(d.consoleLog(id) + ".1")
	raw, _ := os.ReadFile(d.consoleLog(id))
	raw = append(rotated, raw...)
	if i := bytes.LastIndex(raw, []byte("guest: booting")); i >= 0 {
		return raw[i:]
	}
	return raw
}

// launched is when the machine's process made its sockets, which it does as it starts.
func (d *demo) launched(id string) (last time.Time) {
	sockets, _ := filepath.Glob(d.path("run", "vmm", id, "*.sock"))
	for _, path := range sockets {
		if info, err := os.Stat(path); err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
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
		text, _, _ := bytes.Cut(d.bootLog(id), []byte(loginMarker))
		fmt.Printf("%s%s\n", bytes.ReplaceAll(text, []byte("\r"), nil), loginMarker)
		return nil
	}
	conn, err := console.Dial(ctx, d.path("run", "console.sock"), id, console.AttachOptions{})
	if machine.IsKind(err, machine.FailedPrecondition) {
		fmt.Println("Somebody types on the console already; --take-over and --read-only of the command above help.")
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	fmt.Println("Attached to the machine's console; ^] (Control and ]) leaves it.")
	err = console.Interactive(ctx, conn, os.Stdin, os.Stdout)
	fmt.Println("\nLeft the console; the machine goes on. \"make run\" comes back, \"make stop\" ends it.")
	return err
}

// stop deletes the machine and ends daemon and registry.
func (d *demo) stop(ctx context.Context) error {
	p, err := d.living(ctx, "daemon")
	if err != nil {
		return err
	}
	if p == nil { // only a daemon can take the machine down in order
		if vmms, err := d.leftMachine(ctx); err != nil || vmms == 0 {
			fmt.Println("the demo does not run")
			return errors.Join(err, d.end(ctx, "registry"))
		}
		registry, err := d.ensureRegistry(ctx)
		if err != nil {
			return err
		}
		if err := d.ensureDaemon(ctx, sayer(time.Now()), registry); err != nil {
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
			if code := status.Code(err); code != codes.OK && code != codes.NotFound && code != codes.Unavailable {
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
