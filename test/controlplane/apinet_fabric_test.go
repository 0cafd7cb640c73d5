// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/apinet"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/apinet/access"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane"
)

const (
	fabricNamespace = "net"
	fabricNode      = "node-1"
	fabricNetwork   = "ironcore-net://net/network/42/uid"
	providerName    = "cloud-hypervisor-provider"
	holding         = "test.ironcore.dev/holding" // a finalizer
)

// fabric is a control plane of ironcore-net whose part of the network's own controllers the test plays.
type fabric struct {
	*controlplane.ControlPlane
}

func startFabric(t *testing.T) *fabric {
	t.Helper()
	f := &fabric{controlplane.Start(t, controlplane.Options{NetworkInterfaces: true})}
	if err := f.Client().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fabricNamespace}}); err != nil {
		t.Fatal(err)
	}
	return f
}

// nodeKubeconfig is that of a network plugin, by a certificate and with the rights of ironcore's release.
func (f *fabric) nodeKubeconfig(t *testing.T, node string) string {
	t.Helper()
	role := controlplane.NetworkPlugins()
	file, err := f.Kubeconfig(role.UserPrefix+node, role.Group)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// plugin runs a plugin until the test ends. What is not set is that of a usual node.
func (f *fabric) plugin(t *testing.T, o apinet.Options, a access.Options) *apinet.Plugin {
	t.Helper()
	if o.Node == "" {
		o.Node = fabricNode
	}
	if a.Kubeconfig == "" && a.SecretName == "" {
		a.Kubeconfig = f.nodeKubeconfig(t, o.Node)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil)).With("node", o.Node)
	a.Node, a.QPS, a.Burst, a.Logger = o.Node, 500, 500, log
	keys, err := access.New(a)
	if err != nil {
		t.Fatal(err)
	}
	o.Access, o.Provider, o.Logger = keys, providerName, log
	if o.StateID == "" {
		o.StateID = "state-1"
	}
	p, err := apinet.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return p
}

// connected waits until the plugin is ready.
func connected(t *testing.T, p *apinet.Plugin) *apinet.Plugin {
	t.Helper()
	eventually(t, "the plugin is ready", p.Ready)
	return p
}

func nicRequest(machine string, ips ...string) network.Request {
	return network.Request{
		MachineID: machine, MAC: "02:00:00:00:00:01", Hostname: "web", Queues: 1,
		Interface: network.Interface{Name: "primary", NetworkID: fabricNetwork, IPs: ips},
	}
}

// applied is one call of Apply that does not fail.
func applied(t *testing.T, p network.Plugin, r network.Request) network.Result {
	t.Helper()
	result, err := p.Apply(t.Context(), r)
	if err != nil {
		t.Fatalf("Apply = %v", err)
	}
	return result
}

// becomes applies as a reconciler does until the result is in a state for a reason.
func nicBecomes(t *testing.T, p network.Plugin, r network.Request, state network.State, reason string) network.Result {
	t.Helper()
	var result network.Result
	eventually(t, fmt.Sprintf("%s is %s %s", r.Ref(), state, reason), func() error {
		var err error
		if result, err = p.Apply(t.Context(), r); err != nil {
			return err
		}
		if result.State != state || result.Reason != reason {
			return fmt.Errorf("it is %+v", result)
		}
		return nil
	})
	return result
}

func nicGoes(t *testing.T, p network.Plugin, ref network.Ref) {
	t.Helper()
	eventually(t, ref.String()+" is gone", func() error {
		left, err := p.Delete(t.Context(), ref)
		if err == nil && left.State != network.StateAbsent {
			err = fmt.Errorf("it is %+v", left)
		}
		return err
	})
}

// wakes waits for an event of an interface.
func wakes(t *testing.T, events <-chan network.Ref, ref network.Ref) {
	t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case got := <-events:
			if got == ref {
				return
			}
		case <-deadline:
			t.Fatalf("no event of %s", ref)
		}
	}
}

// drain takes the events that are there already.
func drain(events <-chan network.Ref) {
	for {
		select {
		case <-events:
		case <-time.After(300 * time.Millisecond):
			return
		}
	}
}

// objects returns the network interfaces of a machine.
func (f *fabric) objects(t *testing.T, machine string) []unstructured.Unstructured {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(controlplane.NetworkInterfaceKind())
	if err := f.Client().List(t.Context(), list, client.InNamespace(fabricNamespace),
		client.MatchingLabels{providerName + ".ironcore.dev/machine-id": machine}); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// object returns the only network interface of a machine.
func (f *fabric) object(t *testing.T, machine string) *unstructured.Unstructured {
	t.Helper()
	all := f.objects(t, machine)
	if len(all) != 1 {
		t.Fatalf("%d objects, want one: %v", len(all), all)
	}
	return &all[0]
}

// report sets the status of a machine's only interface.
func (f *fabric) report(t *testing.T, machine string, status map[string]any) {
	t.Helper()
	eventually(t, "the status is set", func() error { // in spite of conflicts
		o := f.object(t, machine)
		o.Object["status"] = status
		return f.Client().Status().Update(t.Context(), o)
	})
}

func (f *fabric) reportTap(t *testing.T, machine, tap string) {
	t.Helper()
	f.report(t, machine, map[string]any{"state": "Ready", "tapDevice": map[string]any{"name": tap}})
}

// hold keeps a machine's object from going until the function that is returned is called.
func (f *fabric) hold(t *testing.T, machine string) (release func()) {
	t.Helper()
	o := f.object(t, machine)
	key := client.ObjectKeyFromObject(o)
	change := func(finalizers ...string) {
		t.Helper()
		eventually(t, "finalizers are set", func() error {
			if err := f.Client().Get(t.Context(), key, o); err != nil {
				return err
			}
			o.SetFinalizers(finalizers)
			return f.Client().Update(t.Context(), o)
		})
	}
	change(holding)
	return func() { t.Helper(); change() }
}

// serveTaps plays the network's controllers: each new object becomes ready with a tap. It ends with the test.
func (f *fabric) serveTaps(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		n := 0
		for ctx.Err() == nil {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(controlplane.NetworkInterfaceKind())
			if err := f.Client().List(ctx, list); err != nil && ctx.Err() == nil {
				t.Logf("controller: %v", err)
			}
			for i := range list.Items {
				o := &list.Items[i]
				if _, done := o.Object["status"]; done || o.GetDeletionTimestamp() != nil {
					continue
				}
				n++
				o.Object["status"] = map[string]any{"state": "Ready", "tapDevice": map[string]any{"name": fmt.Sprintf("tap%d", n)}}
				if err := f.Client().Status().Update(ctx, o); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
					t.Logf("controller: %v", err)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
}
