// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc/codes"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/registry"
)

// serveGuest serves a guest of its own making under the command line.
func serveGuest(t *testing.T, o guest.Options, commandLine string) (host, ref string) {
	t.Helper()
	server, err := registry.Start(t.Context(), registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	o.CacheDir = guest.DefaultCacheDir()
	files, err := guest.Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ref = server.Host() + "/test/guest:own"
	_, err = guest.Push(t.Context(), files, ref, guest.PushOptions{
		PlainHTTP: true, PackOptions: guest.PackOptions{CommandLine: guest.DefaultCommandLine(files.Arch) + " " + commandLine},
	})
	if err != nil {
		t.Fatal(err)
	}
	return server.Host(), ref
}

// messages are what the machine's events say.
func (d *daemon) messages(id string) string {
	d.t.Helper()
	answer, err := d.ListEvents(d.t.Context(), &iri.ListEventsRequest{Filter: &iri.EventFilter{Id: id}})
	if err != nil {
		d.t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range answer.Events {
		b.WriteString(e.Spec.Reason + ": " + e.Spec.Message + "\n")
	}
	return b.String()
}

func TestTheGuestAgentIsAskedToShutDownAndWhatTheGuestIs(t *testing.T) {
	binary, _, _ := programs(t)
	host, ref := serveGuest(t, guest.Options{GuestAgent: true}, "chp.agent")
	d := newDaemon(t, binary, host, "--hypervisor", "qemu", "--guest-agent-type", "Qemu",
		"--event-list-watch-source-resync-duration", "2s")
	d.start()
	id := d.create(newMachine(ref, "agent"))
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	d.says(id, "guest: ready login:", 1)
	d.until("the guest says what it is", func() bool {
		for _, c := range d.get(id).Status.MachineConditions {
			if c.Type == "GuestAgent" && c.Status == "True" && strings.Contains(c.Message, "6.") { // the kernel's release
				return true
			}
		}
		return false
	})
	out, err := exec.Command(binary, "machines", "--config", d.path("config.yaml")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "6.") {
		t.Errorf("machines: %v\n%s", err, out)
	}
	d.power(id, iri.Power_POWER_OFF)
	d.state(id, iri.MachineState_MACHINE_SUSPENDED)
	told := d.messages(id)
	for _, want := range []string{"GuestAgentAsked", "GuestShutDown"} {
		if !strings.Contains(told, want) {
			t.Errorf("no event %s:\n%s", want, told)
		}
	}
	if strings.Contains(told, "PowerButtonPressed") || strings.Contains(told, "PowerCut") {
		t.Errorf("the agent was not enough:\n%s", told)
	}
	d.gone(id)
	d.audit(0)
	d.sigterm()
}

func TestAGuestThatIgnoresItsPowerButtonLosesItsPowerAtTheDeadlineThroughAKill(t *testing.T) {
	binary, _, _ := programs(t)
	host, ref := serveGuest(t, guest.Options{}, "chp.ignore_power_button")
	d := newDaemon(t, binary, host, "--hypervisor", "qemu", "--gc-vm-graceful-shutdown-timeout", "12s", "--gc-resync-interval", "2s")
	d.start()
	id := d.create(newMachine(ref, "stubborn"))
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	d.says(id, "guest: ready login:", 1)
	if _, err := d.DeleteMachine(t.Context(), &iri.DeleteMachineRequest{MachineId: id}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	d.says(id, "guest: power button ignored", 2) // pressed again
	_, err := d.DeleteMachine(t.Context(), &iri.DeleteMachineRequest{MachineId: id})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "power is cut at") {
		t.Errorf("asked again: %v", err)
	}
	d.sigkill() // acknowledged before, finished after
	d.start()
	d.until("machine gone", func() bool { return d.get(id) == nil })
	if took := time.Since(begin); took < 10*time.Second {
		t.Errorf("gone after %s, before the deadline", took)
	}
	d.audit(0)
	d.sigterm()
}

// TestSignals holds the documented contract: the first SIGTERM lets calls under way finish within a bound, the second
// one ends the daemon at once, and neither touches a guest.
func TestSignals(t *testing.T) {
	binary, _, fake := programs(t)
	registryHost, ref := serve(t)
	d := newDaemon(t, binary, registryHost, fakeBackend(fake).args...)
	d.start()
	id := d.create(newMachine(ref, "signals"))
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	pid := d.vmm(id)
	hang := func() {
		t.Helper()
		stream, err := healthapi.NewHealthClient(d.conn).Watch(context.Background(), &healthapi.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv() // the call is under way, and goes on for ever
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	hang()
	begin := time.Now()
	d.sigterm()
	if took := time.Since(begin); took < 5*time.Second {
		t.Errorf("a call under way got %s", took)
	}
	d.start()
	hang()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.until("the socket is closed, so the first signal was seen", func() bool {
		conn, err := net.Dial("unix", d.path("iri.sock"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	begin = time.Now()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-d.exited
	if took := time.Since(begin); took > 5*time.Second { // a call would have had 10
		t.Errorf("the second signal took %s", took)
	}
	d.over()
	d.start()
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	if now := d.vmm(id); now != pid {
		t.Errorf("the VMM's pid was %d and is %d", pid, now)
	}
	d.gone(id)
	d.audit(0)
	d.sigterm()
}
