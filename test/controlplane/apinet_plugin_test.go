// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/apinet"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/apinet/access"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/networktest"
)

func TestAPINetOnARealAPIServer(t *testing.T) {
	onRequest(t)
	f := startFabric(t)
	for _, c := range []struct {
		name string
		run  func(*fabric, *testing.T)
	}{
		{"an interface is pending, then ready with its tap", (*fabric).becomesReady},
		{"a PCI function is taken and given back", (*fabric).givesFunction},
		{"an error is told, and its end", (*fabric).failsAndRecovers},
		{"another node's object is left alone", (*fabric).leavesOtherNodes},
		{"another address waits until the old object is gone", (*fabric).changesAddress},
		{"a deletion is over when the last finalizer is", (*fabric).waitsForFinalizer},
		{"an object that somebody deletes is made anew", (*fabric).makesAnew},
		{"objects of another state directory are no leftovers", (*fabric).tellsStates},
		{"what the API server refuses is told in its words", (*fabric).refuses},
		{"without the right to list nothing is gone", (*fabric).listDenied},
		{"without the right to write it says so", (*fabric).writeDenied},
		{"an outage of the API server changes nothing", (*fabric).outlivesOutage},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(f, t) })
	}
}

func (f *fabric) becomesReady(t *testing.T) {
	p, r := connected(t, f.plugin(t, apinet.Options{}, access.Options{})), nicRequest("machine-ready", "10.0.0.1", "fd00::1")
	events := p.Events(t.Context())
	first := applied(t, p, r)
	o := f.object(t, r.MachineID)
	handle := fmt.Sprintf("ironcore-net://net/%s/node-1/%s", o.GetName(), o.GetUID())
	if first.State != network.StatePending || first.Reason != "NotReady" || first.Handle != handle {
		t.Errorf("at first: %+v, want handle %s", first, handle)
	}
	if fields := o.GetManagedFields(); len(fields) != 1 || fields[0].Manager != "networking.ironcore.dev/"+providerName {
		t.Errorf("managed by %+v", fields)
	}
	f.report(t, r.MachineID, map[string]any{"state": "Pending"})
	wakes(t, events, r.Ref())
	nicBecomes(t, p, r, network.StatePending, "NotReady")
	drain(events)
	f.reportTap(t, r.MachineID, "tap7")
	wakes(t, events, r.Ref())
	got := applied(t, p, r)
	if got.State != network.StateReady || got.Backend != network.BackendTap || got.Tap != "tap7" || got.Handle != handle || got.MAC != r.MAC {
		t.Errorf("ready: %+v", got)
	}
	before := f.object(t, r.MachineID).GetResourceVersion()
	applied(t, p, r)
	if seen, err := p.Observe(t.Context(), r.Ref()); err != nil || seen.State != network.StateReady || seen.Tap != "tap7" {
		t.Errorf("Observe = %+v, %v", seen, err)
	}
	if now := f.object(t, r.MachineID).GetResourceVersion(); now != before {
		t.Error("looking changed the object")
	}
	nicGoes(t, p, r.Ref())
	if left := f.objects(t, r.MachineID); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// bus is an imaginary PCI bus: the owner of each function.
type bus struct {
	mu    sync.Mutex
	taken map[string]string
}

func (b *bus) Bind(_ context.Context, address, owner string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken[address] = owner
	return nil
}

func (b *bus) Restore(_ context.Context, owner string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for address, by := range b.taken {
		if by == owner {
			delete(b.taken, address)
		}
	}
	return nil
}

func (b *bus) owner(address string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken[address]
}

func (f *fabric) givesFunction(t *testing.T) {
	b := &bus{taken: map[string]string{}}
	p, r := connected(t, f.plugin(t, apinet.Options{Functions: b}, access.Options{})), nicRequest("machine-pci", "10.0.0.2")
	applied(t, p, r)
	f.report(t, r.MachineID, map[string]any{
		"state": "Ready", "tapDevice": map[string]any{"name": "tap0"},
		"pciAddress": map[string]any{"domain": "0", "bus": "3b", "slot": "2", "function": "1"},
	})
	got := nicBecomes(t, p, r, network.StateReady, "")
	const address = "0000:3b:02.1"
	if got.Backend != network.BackendPCI || got.PCI != address || got.Tap != "" || b.owner(address) != r.Ref().String() {
		t.Errorf("%+v, taken by %q", got, b.owner(address))
	}
	release := f.hold(t, r.MachineID)
	if err := f.Client().Delete(t.Context(), f.object(t, r.MachineID)); err != nil {
		t.Fatal(err)
	}
	nicBecomes(t, p, r, network.StatePending, "Replacing")
	if b.owner(address) == "" {
		t.Error("given back while a VMM may have it")
	}
	release()
	eventually(t, "the object is gone", func() error {
		if left := f.objects(t, r.MachineID); len(left) > 0 {
			return errNotYet
		}
		return nil
	})
	nicGoes(t, p, r.Ref())
	if b.owner(address) != "" {
		t.Error("not given back, since somebody else deleted the object")
	}
	unable := connected(t, f.plugin(t, apinet.Options{}, access.Options{}))
	applied(t, unable, r)
	f.report(t, r.MachineID, map[string]any{"state": "Ready", "pciAddress": map[string]any{"bus": "3b", "slot": "2", "function": "1"}})
	nicBecomes(t, unable, r, network.StateFailed, "PCINotPossible")
	nicGoes(t, unable, r.Ref())
}

func (f *fabric) failsAndRecovers(t *testing.T) {
	p, r := connected(t, f.plugin(t, apinet.Options{}, access.Options{})), nicRequest("machine-error", "10.0.0.3")
	events := p.Events(t.Context())
	applied(t, p, r)
	drain(events)
	f.report(t, r.MachineID, map[string]any{"state": "Error"})
	wakes(t, events, r.Ref())
	if got := applied(t, p, r); got.State != network.StateFailed || got.Reason != "Error" || !strings.Contains(got.Message, "net/") {
		t.Errorf("%+v", got)
	}
	f.report(t, r.MachineID, map[string]any{"state": "Ready", "tapDevice": map[string]any{"name": "../../etc"}})
	nicBecomes(t, p, r, network.StateFailed, "BadDevice")
	f.report(t, r.MachineID, map[string]any{"state": "Ready"})
	nicBecomes(t, p, r, network.StatePending, "NoDevice")
	f.reportTap(t, r.MachineID, "tap3")
	nicBecomes(t, p, r, network.StateReady, "")
	nicGoes(t, p, r.Ref())
}

func (f *fabric) leavesOtherNodes(t *testing.T) {
	here := connected(t, f.plugin(t, apinet.Options{}, access.Options{}))
	there := connected(t, f.plugin(t, apinet.Options{Node: "node-2"}, access.Options{}))
	r := nicRequest("machine-there", "10.0.0.4")
	applied(t, there, r)
	f.reportTap(t, r.MachineID, "tap4")
	nicBecomes(t, there, r, network.StateReady, "")
	before := f.object(t, r.MachineID)
	if got := nicBecomes(t, here, r, network.StateFailed, "NameTaken"); !strings.Contains(got.Message, "node-2") {
		t.Errorf("%+v", got)
	}
	if got, err := here.Observe(t.Context(), r.Ref()); err != nil || got.State != network.StateAbsent {
		t.Errorf("Observe = %+v, %v", got, err)
	}
	if got, err := here.Delete(t.Context(), r.Ref()); err != nil || got.State != network.StateAbsent {
		t.Errorf("Delete = %+v, %v", got, err)
	}
	if refs, err := here.List(t.Context()); err != nil || slices.Contains(refs, r.Ref()) {
		t.Errorf("List = %v, %v", refs, err)
	}
	if now := f.object(t, r.MachineID); now.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("the object was changed: %v", now)
	}
	nicGoes(t, there, r.Ref())
}

func (f *fabric) changesAddress(t *testing.T) {
	p, r := connected(t, f.plugin(t, apinet.Options{}, access.Options{})), nicRequest("machine-move", "10.0.0.5")
	events := p.Events(t.Context())
	first := applied(t, p, r)
	release := f.hold(t, r.MachineID)
	r.Interface.IPs = []string{"10.0.0.6"}
	for range 3 {
		if got := applied(t, p, r); got.State != network.StatePending || got.Reason != "Replacing" {
			t.Errorf("while the old one is there: %+v", got)
		}
	}
	if o := f.object(t, r.MachineID); o.GetDeletionTimestamp() == nil || !strings.HasSuffix(first.Handle, string(o.GetUID())) {
		t.Errorf("the old one: %v", o)
	}
	drain(events)
	release()
	wakes(t, events, r.Ref())
	second := nicBecomes(t, p, r, network.StatePending, "NotReady")
	o := f.object(t, r.MachineID)
	if ips, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "ips"); !slices.Equal(ips, r.Interface.IPs) || second.Handle == first.Handle {
		t.Errorf("the new one: %v, handle %s", o.Object["spec"], second.Handle)
	}
	f.reportTap(t, r.MachineID, "tap5")
	nicBecomes(t, p, r, network.StateReady, "")
	nicGoes(t, p, r.Ref())
}

func (f *fabric) waitsForFinalizer(t *testing.T) {
	p, r := connected(t, f.plugin(t, apinet.Options{}, access.Options{})), nicRequest("machine-held", "10.0.0.7")
	events := p.Events(t.Context())
	applied(t, p, r)
	release := f.hold(t, r.MachineID)
	for range 3 {
		if got, err := p.Delete(t.Context(), r.Ref()); err != nil || got.State != network.StateLeaving || got.Reason != "Deleting" {
			t.Errorf("Delete = %+v, %v", got, err)
		}
	}
	eventually(t, "the watch tells of it", func() error {
		got, err := p.Observe(t.Context(), r.Ref())
		if err == nil && got.State != network.StateLeaving {
			err = errNotYet
		}
		return err
	})
	again := connected(t, f.plugin(t, apinet.Options{}, access.Options{})) // after a restart
	if got, err := again.Delete(t.Context(), r.Ref()); err != nil || got.State != network.StateLeaving {
		t.Errorf("after a restart: %+v, %v", got, err)
	}
	drain(events)
	release()
	wakes(t, events, r.Ref())
	nicGoes(t, p, r.Ref())
}

func (f *fabric) makesAnew(t *testing.T) {
	p, r := connected(t, f.plugin(t, apinet.Options{}, access.Options{})), nicRequest("machine-anew", "10.0.0.8")
	events := p.Events(t.Context())
	first := applied(t, p, r)
	f.reportTap(t, r.MachineID, "tap8")
	nicBecomes(t, p, r, network.StateReady, "")
	drain(events)
	if err := f.Client().Delete(t.Context(), f.object(t, r.MachineID)); err != nil {
		t.Fatal(err)
	}
	wakes(t, events, r.Ref())
	second := nicBecomes(t, p, r, network.StatePending, "NotReady")
	if second.Handle == first.Handle {
		t.Errorf("handle %s", second.Handle)
	}
	nicGoes(t, p, r.Ref())
}

func (f *fabric) tellsStates(t *testing.T) {
	r := nicRequest("machine-state", "10.0.0.9")
	p := connected(t, f.plugin(t, apinet.Options{}, access.Options{}))
	applied(t, p, r)
	for state, want := range map[string]bool{"state-1": true, "state-2": false} {
		other := connected(t, f.plugin(t, apinet.Options{StateID: state}, access.Options{}))
		if refs, err := other.List(t.Context()); err != nil || slices.Contains(refs, r.Ref()) != want {
			t.Errorf("%s: List = %v, %v", state, refs, err)
		}
	}
	nicGoes(t, p, r.Ref())
}

func (f *fabric) refuses(t *testing.T) {
	p, r := connected(t, f.plugin(t, apinet.Options{}, access.Options{})), nicRequest("machine-refused", "10.0.0.10")
	r.MachineID = strings.Repeat("m", 64) // longer than the value of a label may be
	if got := applied(t, p, r); got.State != network.StateFailed || got.Reason != "Refused" || !strings.Contains(got.Message, "63") {
		t.Errorf("%+v", got)
	}
	r = nicRequest("machine-refused", "10.0.0.10")
	r.Interface.NetworkID = "ironcore-net://nowhere/network/1/uid"
	if got, err := p.Apply(t.Context(), r); err == nil || !strings.Contains(err.Error(), `namespaces "nowhere" not found`) {
		t.Errorf("Apply in a namespace that does not exist = %+v, %v", got, err)
	}
}

// stranger is a user without rights.
func (f *fabric) stranger(t *testing.T, name string) (kubeconfig string) {
	t.Helper()
	file, err := f.Kubeconfig(name)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func interfaceRule(verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{"core.apinet.ironcore.dev"}, Resources: []string{"networkinterfaces"}, Verbs: verbs}
}

func (f *fabric) listDenied(t *testing.T) {
	r := nicRequest("machine-hidden", "10.0.0.11")
	owner := connected(t, f.plugin(t, apinet.Options{}, access.Options{}))
	applied(t, owner, r)
	p := f.plugin(t, apinet.Options{}, access.Options{Kubeconfig: f.stranger(t, "blind")})
	events := p.Events(t.Context())
	eventually(t, "it says that it may not list", func() error {
		if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "forbidden") {
			return fmt.Errorf("Ready = %w", err)
		}
		return nil
	})
	if got := applied(t, p, r); got.State != network.StatePending || got.Reason != "NotConnected" || !strings.Contains(got.Message, "forbidden") {
		t.Errorf("Apply = %+v", got)
	}
	if got, err := p.Delete(t.Context(), r.Ref()); err != nil || got.State != network.StateLeaving {
		t.Errorf("Delete = %+v, %v", got, err)
	}
	if got, err := p.Observe(t.Context(), r.Ref()); err != nil || got.State != network.StatePending {
		t.Errorf("Observe = %+v, %v", got, err)
	}
	if refs, err := p.List(t.Context()); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("List = %v, %v", refs, err)
	}
	f.Grant(t, "blind", "blind", interfaceRule("list", "watch"))
	wakes(t, events, r.Ref())
	connected(t, p)
	if got, err := p.Observe(t.Context(), r.Ref()); err != nil || got.State != network.StatePending || got.Handle == "" {
		t.Errorf("Observe = %+v, %v", got, err)
	}
	nicGoes(t, owner, r.Ref())
}

func (f *fabric) writeDenied(t *testing.T) {
	f.Grant(t, "reader", "reader", interfaceRule("list", "watch"))
	p, r := connected(t, f.plugin(t, apinet.Options{}, access.Options{Kubeconfig: f.stranger(t, "reader")})), nicRequest("machine-denied", "10.0.0.12")
	got := applied(t, p, r)
	if got.State != network.StateFailed || got.Reason != "Forbidden" || !strings.Contains(got.Message, `User "reader" cannot patch`) {
		t.Errorf("Apply = %+v", got)
	}
	if err := p.Ready(); err != nil {
		t.Errorf("Ready = %v", err)
	}
	owner := connected(t, f.plugin(t, apinet.Options{}, access.Options{}))
	applied(t, owner, r)
	nicBecomes(t, p, r, network.StatePending, "NotReady") // it is there, by whomever
	if left, err := p.Delete(t.Context(), r.Ref()); err == nil || !strings.Contains(err.Error(), `User "reader" cannot delete`) {
		t.Errorf("Delete = %+v, %v", left, err)
	}
	f.Grant(t, "writer", "reader", interfaceRule("patch", "create", "delete"))
	nicGoes(t, p, r.Ref())
	nicBecomes(t, p, r, network.StatePending, "NotReady")
	nicGoes(t, p, r.Ref())
}

func (f *fabric) outlivesOutage(t *testing.T) {
	p := connected(t, f.plugin(t, apinet.Options{}, access.Options{}))
	r, gone := nicRequest("machine-outage", "10.0.0.13"), nicRequest("machine-leaving", "10.0.0.14")
	for _, one := range []network.Request{r, gone} {
		applied(t, p, one)
		f.reportTap(t, one.MachineID, "tap13")
		nicBecomes(t, p, one, network.StateReady, "")
	}
	events := p.Events(t.Context())
	f.StopAPIServer()
	eventually(t, "the outage is told", func() error {
		if p.Ready() == nil {
			return errNotYet
		}
		return nil
	})
	if got := applied(t, p, r); got.State != network.StateReady {
		t.Errorf("Apply = %+v", got)
	}
	if got, err := p.Observe(t.Context(), r.Ref()); err != nil || got.State != network.StateReady {
		t.Errorf("Observe = %+v, %v", got, err)
	}
	if refs, err := p.List(t.Context()); err != nil || !slices.Contains(refs, r.Ref()) {
		t.Errorf("List = %v, %v", refs, err)
	}
	began := time.Now()
	if left, err := p.Delete(t.Context(), gone.Ref()); err == nil {
		t.Errorf("Delete = %+v without an API server", left)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("Delete took %v", took)
	}
	fresh := f.plugin(t, apinet.Options{}, access.Options{}) // a daemon that is started meanwhile
	if got := applied(t, fresh, r); got.State != network.StatePending || got.Reason != "NotConnected" {
		t.Errorf("Apply of a fresh one = %+v", got)
	}
	f.StartAPIServer(t)
	connected(t, fresh)
	connected(t, p)
	if got := applied(t, fresh, r); got.State != network.StateReady {
		t.Errorf("Apply of a fresh one = %+v", got)
	}
	nicGoes(t, p, gone.Ref())
	drain(events)
	f.report(t, r.MachineID, map[string]any{"state": "Error"})
	wakes(t, events, r.Ref())
	nicBecomes(t, p, r, network.StateFailed, "Error")
	nicGoes(t, p, r.Ref())
}

func TestAPINetKeepsWhatEveryPluginPromisesOnARealAPIServer(t *testing.T) {
	onRequest(t)
	f := startFabric(t)
	f.serveTaps(t)
	good := network.Interface{NetworkID: fabricNetwork, IPs: []string{"10.0.0.1"}}
	other, bad := good, good
	other.IPs = []string{"10.0.0.2"}
	bad.NetworkID = "bridge0"
	networktest.Conformance(t, networktest.Setup{
		New: func(t *testing.T) network.Plugin {
			return connected(t, f.plugin(t, apinet.Options{}, access.Options{}))
		},
		Request:  good,
		Other:    &other,
		Bad:      map[string]networktest.Bad{"a bridge for a network": {NICs: []network.Interface{good, bad}, Index: 1, Field: "network_id"}},
		Eventful: true,
		Occupy:   f.occupy,
		Patience: patience,
		Quick:    10 * time.Second,
	})
}

// occupy has another node make the object whose name an interface's would have.
func (f *fabric) occupy(t *testing.T, ref network.Ref) (untouched func() error) {
	there := connected(t, f.plugin(t, apinet.Options{Node: "node-2"}, access.Options{}))
	r := nicRequest(ref.MachineID, "10.0.0.9")
	r.Interface.Name = ref.Name
	applied(t, there, r)
	nicBecomes(t, there, r, network.StateReady, "")
	before := f.object(t, ref.MachineID)
	t.Cleanup(func() { // its plugin has ended
		if err := f.Client().Delete(context.Background(), before); err != nil {
			t.Error(err)
		}
	})
	return func() error {
		if now := f.object(t, ref.MachineID); now.GetResourceVersion() != before.GetResourceVersion() {
			return fmt.Errorf("it is %v", now.Object)
		}
		return nil
	}
}
