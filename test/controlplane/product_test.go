// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	commonv1alpha1 "github.com/ironcore-dev/ironcore/api/common/v1alpha1"
	computev1alpha1 "github.com/ironcore-dev/ironcore/api/compute/v1alpha1"
	corev1alpha1 "github.com/ironcore-dev/ironcore/api/core/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane/record"
)

const (
	poolName  = "pool"
	className = "small"
	namespace = metav1.NamespaceDefault
	login     = "guest: ready login:"
	ignition  = `{"ignition":{"version":"3.4.0"},"passwd":{"users":[{"name":"core"}]}}`
)

// product is everything: control plane, poollet, recorder, daemon.
type product struct {
	*controlplane.ControlPlane
	daemon  *daemon
	calls   *record.Recorder
	poollet *controlplane.Poollet
	machine client.ObjectKey
}

// newProduct starts all and waits until the pool is ready to take machines.
func newProduct(t *testing.T) *product {
	t.Helper()
	binary := buildDaemon(t)
	p := &product{ControlPlane: controlplane.Start(t, controlplane.Options{IronCore: true})}
	p.daemon = newDaemon(t, binary, p.Dir())
	socket := p.daemon.path("recorded.sock")
	var err error
	if p.calls, err = record.Start(socket, p.daemon.path("iri.sock")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			p.tellCalls(t)
		}
		_ = p.calls.Close()
	})
	p.create(t, &computev1alpha1.MachineClass{
		ObjectMeta: metav1.ObjectMeta{Name: className},
		Capabilities: corev1alpha1.ResourceList{
			corev1alpha1.ResourceCPU: resource.MustParse("1"), corev1alpha1.ResourceMemory: resource.MustParse("192Mi"),
		},
	})
	p.poollet = p.StartPoollet(t, controlplane.PoolletOptions{Pool: poolName, Socket: socket})
	p.poolIsReady(t)
	return p
}

// tellCalls logs what the poollet asked for, but for what it always asks for.
func (p *product) tellCalls(t *testing.T) {
	var b strings.Builder
	for _, c := range p.calls.Since(time.Time{}) {
		if !record.Idle(c.Method) {
			_, _ = fmt.Fprintf(&b, "%s %v\n", c.Time.Format(time.StampMilli), c)
		}
	}
	t.Logf("the poollet's calls:\n%s", b.String())
}

// create makes an object that may exist already.
func (p *product) create(t *testing.T, object client.Object) {
	t.Helper()
	if err := p.Client().Create(t.Context(), object); client.IgnoreAlreadyExists(err) != nil {
		t.Fatalf("create %T: %v", object, err)
	}
}

func (p *product) poolIsReady(t *testing.T) {
	t.Helper()
	eventually(t, "the pool is ready for machines", func() error {
		if !p.poollet.Running() {
			t.Fatalf("the poollet has ended:\n%s", p.poollet.Log())
		}
		var pool computev1alpha1.MachinePool
		if err := p.Client().Get(t.Context(), client.ObjectKey{Name: poolName}, &pool); err != nil {
			return err
		}
		for _, c := range pool.Status.Conditions {
			if c.Type == computev1alpha1.MachinePoolReady && c.Status == corev1.ConditionTrue && len(pool.Status.AvailableMachineClasses) == 1 {
				return nil
			}
		}
		return fmt.Errorf("%+v", pool.Status)
	})
}

// createMachine asks for a machine as a user would. The scheduler finds the pool.
func (p *product) createMachine(t *testing.T, change func(*computev1alpha1.Machine)) {
	t.Helper()
	p.create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ignition"},
		StringData: map[string]string{computev1alpha1.DefaultIgnitionKey: ignition},
	})
	device := "oda"
	m := &computev1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
		Spec: computev1alpha1.MachineSpec{
			MachineClassRef: corev1.LocalObjectReference{Name: className},
			IgnitionRef:     &commonv1alpha1.SecretKeySelector{Name: "ignition"},
			Volumes: []computev1alpha1.Volume{{
				Name: "root", Device: &device,
				VolumeSource: computev1alpha1.VolumeSource{LocalDisk: &computev1alpha1.LocalDiskVolumeSource{Image: p.daemon.image}},
			}},
		},
	}
	if change != nil {
		change(m)
	}
	p.create(t, m)
	p.machine = client.ObjectKeyFromObject(m)
}

func (p *product) get(ctx context.Context) (*computev1alpha1.Machine, error) {
	var m computev1alpha1.Machine
	return &m, p.Client().Get(ctx, p.machine, &m)
}

// becomes waits for a state of the Machine object.
func (p *product) becomes(t *testing.T, want computev1alpha1.MachineState) *computev1alpha1.Machine {
	t.Helper()
	var m *computev1alpha1.Machine
	eventually(t, "the machine is "+string(want), func() error {
		var err error
		if m, err = p.get(t.Context()); err != nil || m.Status.State == want {
			return err
		}
		return fmt.Errorf("it is %q, conditions %v", m.Status.State, m.Status.Conditions)
	})
	return m
}

// says waits until the guest has said something that many times since its machine was made.
func (p *product) says(t *testing.T, what string, times int) {
	t.Helper()
	eventually(t, "the guest says "+what, func() error {
		if strings.Count(p.daemon.console(), what) < times {
			return errNotYet
		}
		return nil
	})
}

// edit changes the Machine object.
func (p *product) edit(t *testing.T, change func(*computev1alpha1.Machine)) {
	t.Helper()
	eventually(t, "the Machine object is changed", func() error {
		m, err := p.get(t.Context())
		if err != nil {
			return err
		}
		change(m)
		return p.Client().Update(t.Context(), m)
	})
}

// deleteMachine deletes the Machine object, and waits until it and all of the machine are gone.
func (p *product) deleteMachine(t *testing.T) {
	t.Helper()
	p.askForDeletion(t)
	p.isGone(t)
}

func (p *product) askForDeletion(t *testing.T) {
	t.Helper()
	m, err := p.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Client().Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

func (p *product) isGone(t *testing.T) {
	t.Helper()
	eventually(t, "the Machine object is gone", func() error {
		if _, err := p.get(t.Context()); !apierrors.IsNotFound(err) {
			return fmt.Errorf("get: %w", err)
		}
		return nil
	})
	p.daemon.clean(t)
}

// staysQuiet expects that for some time the poollet only looks and asks for nothing: what it sees is what it wants.
func (p *product) staysQuiet(t *testing.T, during time.Duration) {
	t.Helper()
	begin := time.Now()
	time.Sleep(during) // the absence of something cannot be waited for otherwise
	calls := p.calls.Since(begin)
	if len(calls) == 0 {
		t.Error("the poollet does not even look")
	}
	for _, c := range calls {
		switch {
		case c.Method == "ListMachines" && c.Request == "{}", c.Method == "Status", c.Method == "ListEvents":
			if took := c.Took; took > 5*time.Second {
				t.Errorf("%v took %v", c.Method, took)
			}
		default:
			t.Errorf("although nothing is to be done: %v", c)
		}
	}
}

// settles waits until the poollet has asked for nothing for some seconds.
func (p *product) settles(t *testing.T) {
	t.Helper()
	const quiet = 12 * time.Second // twice the time between two looks
	eventually(t, "the poollet is done", func() error {
		for _, c := range p.calls.Since(time.Now().Add(-quiet)) {
			if c.Method == "ListMachines" && c.Request != "{}" || !record.Idle(c.Method) {
				return fmt.Errorf("it asked %v", c)
			}
		}
		return nil
	})
}

// TestAPoolletRunsAMachine is the shortest way through everything, for each run of the tests.
func TestAPoolletRunsAMachine(t *testing.T) {
	p := newProduct(t)
	p.createMachine(t, nil)
	p.becomes(t, computev1alpha1.MachineStateRunning)
	p.says(t, login, 1)
	p.says(t, "guest: ignition-data "+base64.StdEncoding.EncodeToString([]byte(ignition)), 1)
	p.deleteMachine(t)
}
