// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	computev1alpha1 "github.com/ironcore-dev/ironcore/api/compute/v1alpha1"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// quietTime is how long the poollet has to ask for nothing; its slowest habit is to list events once a minute.
const quietTime = time.Minute

// step is a part of a machine's life, after which nobody may have anything to do.
func (p *product) step(t *testing.T, name string, run func(t *testing.T)) {
	t.Helper()
	if !t.Run(name, run) {
		t.FailNow() // what follows builds on it
	}
}

// TestTheLifeOfAMachine takes a machine through everything that a user of ironcore can ask for, and through the deaths
// of those who serve it.
func TestTheLifeOfAMachine(t *testing.T) {
	onRequest(t)
	p := newProduct(t)
	p.step(t, "a machine with Ignition and a local disk boots", func(t *testing.T) {
		p.createMachine(t, nil)
		p.becomes(t, computev1alpha1.MachineStateRunning)
		p.says(t, login, 1)
		p.says(t, "guest: ignition-data "+base64.StdEncoding.EncodeToString([]byte(ignition)), 1)
	})
	p.step(t, "its conditions and volumes are reported", p.reported)
	p.step(t, "its console opens through the API", p.consoles)
	p.step(t, "a minute in which nothing is to be done", func(t *testing.T) {
		p.settles(t)
		p.staysQuiet(t, quietTime)
	})
	p.step(t, "the poollet restarts and changes nothing", p.poolletRestarts)
	p.step(t, "the daemon is killed and the guest does not notice", p.daemonDies)
	p.step(t, "power off lets the guest shut down, power on boots it again", p.power)
	p.step(t, "the daemon is killed while the guest shuts down", p.daemonDiesWhileShuttingDown)
	p.step(t, "the API server restarts", func(t *testing.T) {
		p.RestartAPIServer(t)
		p.poolIsReady(t)
		p.becomes(t, computev1alpha1.MachineStateRunning)
	})
	p.step(t, "a minute in which nothing is to be done, after all that", func(t *testing.T) {
		p.settles(t)
		p.staysQuiet(t, quietTime)
	})
	p.step(t, "events of the machine are told", p.events)
	p.step(t, "deletion lets the guest shut down and leaves nothing, although the poollet dies", p.deletion)
}

func (p *product) deletion(t *testing.T) {
	begin := time.Now()
	console := p.keepConsole(t)
	p.askForDeletion(t)
	if _, err := p.calls.WaitFor(t.Context(), "DeleteMachine", begin); err != nil {
		t.Fatal(err)
	}
	p.poollet.Kill()
	p.poollet.Start(t)
	p.isGone(t)
	if said := console(); strings.Count(said, "guest: power button") != 3 { // twice by power off
		t.Errorf("the guest was not asked to shut down:\n%s", said)
	}
	p.only(t, begin, "DeleteMachine")
}

// asked counts the calls of a method since a time; those that failed because the daemon was away do not count.
func (p *product) asked(begin time.Time, method string) int {
	n := 0
	for _, c := range p.calls.Since(begin) {
		if c.Method == method && c.Code != codes.Unavailable {
			n++
		}
	}
	return n
}

// only expects that of what changes something nothing but some methods were asked for since a time.
func (p *product) only(t *testing.T, begin time.Time, methods ...string) {
	t.Helper()
	for _, c := range p.calls.Since(begin) {
		switch c.Method {
		case "ListMachines", "Status", "ListEvents", "Version", "UpdateMachineAnnotations":
		default:
			if !slices.Contains(methods, c.Method) {
				t.Errorf("it was asked: %v", c)
			}
		}
	}
}

// reported looks at what the user is told.
func (p *product) reported(t *testing.T) {
	eventually(t, "the root volume is attached", func() error {
		m, err := p.get(t.Context())
		if err != nil {
			return err
		}
		if len(m.Status.Volumes) != 1 || m.Status.Volumes[0].State != computev1alpha1.VolumeStateAttached {
			return errNotYet
		}
		return nil
	})
	m, err := p.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(m.Status.MachineID, "cloud-hypervisor-provider://") {
		t.Errorf("machine id %q", m.Status.MachineID)
	}
	for _, want := range []computev1alpha1.MachineConditionType{"Ready", "VolumesReady"} {
		if !slices.ContainsFunc(m.Status.Conditions, func(c computev1alpha1.MachineCondition) bool {
			return c.Type == want && c.Status == corev1.ConditionTrue
		}) {
			t.Errorf("the machine is not %s: %+v", want, m.Status.Conditions)
		}
	}
	eventually(t, "the pool counts the machine", func() error {
		var pool computev1alpha1.MachinePool
		if err := p.Client().Get(t.Context(), client.ObjectKey{Name: poolName}, &pool); err != nil {
			return err
		}
		const count = "class/machine." + className
		capacity, allocatable := pool.Status.Capacity[count], pool.Status.Allocatable[count]
		if capacity.Value() == 0 || allocatable.Value() != capacity.Value()-1 {
			return fmt.Errorf("capacity %v, allocatable %v", &capacity, &allocatable)
		}
		return nil
	})
}

func (p *product) poolletRestarts(t *testing.T) {
	begin := time.Now()
	if err := p.poollet.Stop(); err != nil {
		t.Errorf("the poollet ended with %v", err)
	}
	p.poollet.Start(t)
	// A poollet whose first Status fails ends after ten seconds, so that the next death has to wait for it.
	for _, method := range []string{"Version", "Status", "ListMachines"} {
		if _, err := p.calls.WaitFor(t.Context(), method, begin); err != nil {
			t.Fatal(err)
		}
	}
	p.poolIsReady(t)
	p.settles(t)
	p.only(t, begin)
	p.becomes(t, computev1alpha1.MachineStateRunning)
}

func (p *product) guest(t *testing.T) int {
	t.Helper()
	pids := p.daemon.guests()
	if len(pids) != 1 {
		t.Fatalf("VMM processes %v", pids)
	}
	return pids[0]
}

func (p *product) daemonDies(t *testing.T) {
	pid, begin := p.guest(t), time.Now()
	p.daemon.Kill()
	eventually(t, "the poollet sees that the runtime is away", func() error {
		for _, c := range p.calls.Since(begin) {
			if c.Code == codes.Unavailable {
				return nil
			}
		}
		return errNotYet
	})
	p.daemon.start(t)
	p.poolIsReady(t)
	p.becomes(t, computev1alpha1.MachineStateRunning)
	if now := p.guest(t); now != pid {
		t.Errorf("the guest was process %d and is %d", pid, now)
	}
	p.settles(t)
	p.only(t, begin)
}

func setPower(power computev1alpha1.Power) func(*computev1alpha1.Machine) {
	return func(m *computev1alpha1.Machine) { m.Spec.Power = power }
}

func (p *product) power(t *testing.T) {
	if !p.poollet.Running() {
		t.Fatalf("the poollet has ended:\n%s", p.poollet.Log())
	}
	begin := time.Now()
	p.edit(t, setPower(computev1alpha1.PowerOff))
	p.becomes(t, computev1alpha1.MachineStateShutdown)
	p.says(t, "guest: power", 1)
	if pids := p.daemon.guests(); len(pids) > 0 {
		t.Errorf("powered off, but processes %v", pids)
	}
	p.settles(t)
	p.edit(t, setPower(computev1alpha1.PowerOn))
	p.says(t, login, 2)
	p.becomes(t, computev1alpha1.MachineStateRunning)
	p.settles(t)
	p.only(t, begin, "UpdateMachinePower")
	if n := p.asked(begin, "UpdateMachinePower"); n != 2 {
		t.Errorf("power was set %d times", n)
	}
}

func (p *product) daemonDiesWhileShuttingDown(t *testing.T) {
	begin := time.Now()
	p.edit(t, setPower(computev1alpha1.PowerOff))
	if _, err := p.calls.WaitFor(t.Context(), "UpdateMachinePower", begin); err != nil {
		t.Fatal(err)
	}
	p.daemon.Kill()
	p.daemon.start(t)
	p.becomes(t, computev1alpha1.MachineStateShutdown)
	p.edit(t, setPower(computev1alpha1.PowerOn))
	p.says(t, login, 3)
	p.becomes(t, computev1alpha1.MachineStateRunning)
	p.settles(t)
	p.only(t, begin, "UpdateMachinePower")
}

// keepConsole holds on to the machine's console file, so that its last lines can be read when the machine is gone.
func (p *product) keepConsole(t *testing.T) func() string {
	t.Helper()
	files, err := filepath.Glob(p.daemon.path("state", "machines", "*", "console.log"))
	if err != nil || len(files) != 1 {
		t.Fatalf("console files %v: %v", files, err)
	}
	f, err := os.Open(files[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return func() string {
		raw, err := io.ReadAll(f)
		if err != nil {
			t.Error(err)
		}
		return string(raw)
	}
}

// events expects that what the daemon did is told as events of the Machine object.
func (p *product) events(t *testing.T) {
	eventually(t, "events are told", func() error {
		var list eventsv1.EventList
		if err := p.Client().List(t.Context(), &list, client.InNamespace(p.machine.Namespace)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.Name == p.machine.Name && e.ReportingController == "machine-cluster-events" {
				return nil
			}
		}
		return errNotYet
	})
}
