// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package apinet

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/macvtap"
)

const machineID = "11111111-1111-4111-8111-111111111111"

func request() network.Request {
	return network.Request{
		MachineID: machineID, MAC: "02:00:00:00:00:01", Hostname: "web-1", Queues: 1,
		Interface: network.Interface{Name: "primary", NetworkID: "ironcore-net://ns-1/net-1/42/uid-net", IPs: []string{"10.0.0.1", "fd00::1"}},
	}
}

func start(t *testing.T, o Options) *Plugin {
	t.Helper()
	o.Node, o.Provider = "node-1", "cloud-hypervisor-provider"
	if o.StateID == "" {
		o.StateID = "state-1"
	}
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return p
}

func ready(t *testing.T, p *Plugin) *Plugin {
	t.Helper()
	eventually(t, "the list is complete", func() bool { return p.Ready() == nil })
	return p
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func apply(t *testing.T, p *Plugin, req network.Request) network.Result {
	t.Helper()
	r, err := p.Apply(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAnInterfaceBecomesReadyWithItsTap(t *testing.T) {
	a := newAPI(t)
	p := ready(t, start(t, Options{Access: a}))
	events := p.Events(t.Context())
	first := apply(t, p, request())
	if first.State != network.StatePending || first.Handle == "" {
		t.Fatalf("at first: %+v", first)
	}
	o := a.only()
	want := map[string]any{
		"nodeRef": map[string]any{"name": "node-1"}, "networkRef": map[string]any{"name": "net-1"},
		"ips": []any{"10.0.0.1", "fd00::1"}, "hostname": "web-1",
	}
	if diff := cmp.Diff(want, o.Object["spec"]); diff != "" || o.GetNamespace() != "ns-1" ||
		o.GetLabels()["cloud-hypervisor-provider.ironcore.dev/machine-id"] != machineID {
		t.Errorf("declared: %s\n%v", diff, o.Object["metadata"])
	}
	a.report(map[string]any{"state": "Ready", "tapDevice": map[string]any{"name": "mtap7"}})
	eventually(t, "the interface is ready", func() bool {
		return apply(t, p, request()).State == network.StateReady
	})
	if ref := <-events; ref != request().Ref() {
		t.Errorf("event of %v", ref)
	}
	got := apply(t, p, request())
	handle := "ironcore-net://ns-1/" + o.GetName() + "/node-1/" + string(o.GetUID())
	if got.Backend != network.BackendTap || got.Tap != "mtap7" || got.Handle != handle || got.MAC != request().MAC || first.Handle != handle {
		t.Errorf("ready: %+v, want handle %s", got, handle)
	}
	if _, writes := a.count(); writes != 1 {
		t.Errorf("%d writes, want one", writes)
	}
	seen, err := p.Observe(t.Context(), request().Ref())
	if err != nil || seen.State != network.StateReady || seen.Tap != "mtap7" {
		t.Errorf("Observe = %+v, %v", seen, err)
	}
}

// functions is an imaginary PCI bus: the owner of each function.
type functions struct {
	mu    sync.Mutex
	taken map[string]string
}

func (f *functions) Bind(_ context.Context, address, owner string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken[address] = owner
	return nil
}

func (f *functions) Restore(_ context.Context, owner string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for address, by := range f.taken {
		if by == owner {
			delete(f.taken, address)
		}
	}
	return nil
}

func TestAPCIFunctionIsBoundAndGivenBack(t *testing.T) {
	a, bus := newAPI(t), &functions{taken: map[string]string{}}
	p := ready(t, start(t, Options{Access: a, Functions: bus}))
	apply(t, p, request())
	a.report(map[string]any{"state": "Ready", "tapDevice": map[string]any{"name": "both"}, "pciAddress": map[string]any{
		"domain": "0000", "bus": "3b", "slot": "02", "function": "1",
	}})
	eventually(t, "the interface is ready", func() bool { return apply(t, p, request()).State == network.StateReady })
	r := apply(t, p, request())
	if r.Backend != network.BackendPCI || r.PCI != "0000:3b:02.1" || bus.taken["0000:3b:02.1"] != request().Ref().String() {
		t.Errorf("%+v, bus %v", r, bus.taken)
	}
	eventually(t, "the interface is gone", func() bool {
		left, err := p.Delete(t.Context(), request().Ref())
		return err == nil && left.State == network.StateAbsent
	})
	if objects, _ := a.count(); objects != 0 || len(bus.taken) != 0 {
		t.Errorf("left: %d objects, bus %v", objects, bus.taken)
	}
}

func TestAPCIFunctionStaysTakenUntilItsInterfaceIsDeleted(t *testing.T) {
	a, bus := newAPI(t), &functions{taken: map[string]string{}}
	a.finalizer = true
	p := ready(t, start(t, Options{Access: a, Functions: bus}))
	apply(t, p, request())
	a.report(map[string]any{"state": "Ready", "pciAddress": map[string]any{"bus": "3b", "slot": "2", "function": "1"}})
	eventually(t, "the interface is ready", func() bool { return apply(t, p, request()).State == network.StateReady })

	// Somebody deletes the object while a VMM has the function.
	client, _ := a.Connect(t.Context())
	if err := client.Resource(resource).Namespace("ns-1").Delete(t.Context(), a.only().GetName(), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: new(a.only().GetUID())},
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the deletion is seen", func() bool { return apply(t, p, request()).Reason == "Replacing" })
	if len(bus.taken) != 1 {
		t.Error("the function was given back")
	}
	a.finish()
	eventually(t, "the object is gone", func() bool {
		r, err := p.Observe(t.Context(), request().Ref())
		return err == nil && r.State == network.StateAbsent
	})
	if left, err := p.Delete(t.Context(), request().Ref()); err != nil || left.State != network.StateAbsent || len(bus.taken) != 0 {
		t.Errorf("Delete = %+v, %v; bus %v", left, err, bus.taken)
	}
}

// taps are imaginary: the device that each tap is on top of.
type taps struct {
	made map[string]string
	err  error
}

func (h *taps) Connect(_ context.Context, device, scheme string, ref network.Ref, mac string) (string, error) {
	if h.err != nil || mac == "" {
		return "", errors.Join(h.err, errors.New(mac))
	}
	h.made[scheme+"://"+ref.String()] = device
	return "over-" + device, nil
}

func (h *taps) Find(_ context.Context, device, scheme string, ref network.Ref) string {
	if h.made[scheme+"://"+ref.String()] == device {
		return "over-" + device
	}
	return device
}

func (h *taps) Disconnect(_ context.Context, scheme string, ref network.Ref) error {
	delete(h.made, scheme+"://"+ref.String())
	return nil
}

func TestATapOfTheDataPlaneIsConnectedToAndLetGo(t *testing.T) {
	a, host := newAPI(t), &taps{made: map[string]string{}, err: macvtap.ErrNoDevice}
	p := ready(t, start(t, Options{Access: a, Taps: host}))
	apply(t, p, request())
	a.report(map[string]any{"state": "Ready", "tapDevice": map[string]any{"name": "dtap7"}})
	eventually(t, "the device is missing", func() bool { return apply(t, p, request()).Reason == "DeviceMissing" })
	host.err = macvtap.ErrNotOwner
	if r := apply(t, p, request()); r.State != network.StateFailed || r.Reason != "DeviceForeign" || r.Tap != "" || r.Backend != "" {
		t.Errorf("a foreign device: %+v", r)
	}
	host.err = nil
	if r := apply(t, p, request()); r.State != network.StateReady || r.Tap != "over-dtap7" {
		t.Errorf("connected: %+v", r)
	}
	if r, err := p.Observe(t.Context(), request().Ref()); err != nil || r.Tap != "over-dtap7" {
		t.Errorf("Observe = %+v, %v", r, err)
	}
	eventually(t, "the interface is gone", func() bool {
		left, err := p.Delete(t.Context(), request().Ref())
		return err == nil && left.State == network.StateAbsent
	})
	if len(host.made) > 0 {
		t.Errorf("left: %v", host.made)
	}
}

func TestPCIAddressesAreWrittenAsSysfsDoes(t *testing.T) {
	for parts, want := range map[[4]string]string{
		{"0000", "3b", "02", "1"}: "0000:3b:02.1",
		{"", "3b", "2", "1"}:      "0000:3b:02.1",
		{"0", "3", "0", ""}:       "0000:03:00.0",
		{"0", "FF", "1F", "7"}:    "0000:ff:1f.7",
		{"0", "..", "/", "1"}:     "0:..:/.1",
	} {
		if got := pciAddress(parts[:]...); got != want {
			t.Errorf("%q is %s, want %s", parts, got, want)
		}
	}
}

func TestATapThatCannotBeFailsByName(t *testing.T) {
	a := newAPI(t)
	p := ready(t, start(t, Options{Access: a}))
	apply(t, p, request())
	a.report(map[string]any{"state": "Ready", "tapDevice": map[string]any{"name": "../../etc/passwd"}})
	eventually(t, "it fails", func() bool { return apply(t, p, request()).Reason == "BadDevice" })
}

func TestThatNothingMayBeListedIsToldUntilItMay(t *testing.T) {
	a := newAPI(t)
	a.hidden = true
	p := start(t, Options{Access: a})
	eventually(t, "it is told", func() bool {
		err := p.Ready()
		return err != nil && strings.Contains(err.Error(), "forbidden")
	})
	if r := apply(t, p, request()); r.State != network.StatePending || !strings.Contains(r.Message, "forbidden") {
		t.Errorf("Apply = %+v", r)
	}
	if refs, err := p.List(t.Context()); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("List = %v, %v", refs, err)
	}
	a.mu.Lock()
	a.hidden = false
	a.mu.Unlock()
	ready(t, p)
	a.mu.Lock()
	a.hidden = true
	a.mu.Unlock()
	a.endWatches()
	eventually(t, "it is told again", func() bool { return p.Ready() != nil })
	if refs, err := p.List(t.Context()); err != nil { // what was known is known
		t.Errorf("List = %v, %v", refs, err)
	}
}

func TestWithoutVFIOAPCIFunctionFailsByName(t *testing.T) {
	a := newAPI(t)
	p := ready(t, start(t, Options{Access: a}))
	apply(t, p, request())
	a.report(map[string]any{"state": "Ready", "pciAddress": map[string]any{"bus": "3b", "slot": "02", "function": "1"}})
	eventually(t, "it fails", func() bool { return apply(t, p, request()).Reason == "PCINotPossible" })
}

func TestAnImmutableChangeWaitsUntilTheOldObjectIsGone(t *testing.T) {
	a := newAPI(t)
	a.finalizer = true
	p := ready(t, start(t, Options{Access: a}))
	apply(t, p, request())
	before := a.only().GetUID()
	changed := request()
	changed.Interface.IPs = []string{"10.0.0.2"}
	if p.Identity(changed.Interface) == p.Identity(request().Interface) {
		t.Error("the change is taken for none")
	}
	for range 3 {
		if r := apply(t, p, changed); r.State != network.StatePending || r.Reason != "Replacing" {
			t.Fatalf("while the old one lives: %+v", r)
		}
	}
	if o := a.only(); o.GetUID() != before || o.GetDeletionTimestamp() == nil {
		t.Fatalf("the old one: %v", o.Object["metadata"])
	}
	a.finish()
	eventually(t, "the new one is there", func() bool { return apply(t, p, changed).Reason == "NotReady" })
	if o := a.only(); o.GetUID() == before {
		t.Error("it is the old one still")
	}
	ips, _, _ := unstructured.NestedStringSlice(a.only().Object, "spec", "ips")
	if len(ips) != 1 || ips[0] != "10.0.0.2" {
		t.Errorf("ips %v", ips)
	}
}

func TestDeletionIsOverOnlyWhenTheObjectIsGone(t *testing.T) {
	a := newAPI(t)
	a.finalizer = true
	p := ready(t, start(t, Options{Access: a}))
	apply(t, p, request())
	for range 3 {
		left, err := p.Delete(t.Context(), request().Ref())
		if err != nil || left.State == network.StateAbsent {
			t.Fatalf("Delete = %+v, %v", left, err)
		}
	}
	a.finish()
	eventually(t, "it is gone", func() bool {
		left, err := p.Delete(t.Context(), request().Ref())
		return err == nil && left.State == network.StateAbsent
	})
	if _, writes := a.count(); writes > 3 {
		t.Errorf("%d writes for one apply and one delete", writes)
	}
}

func TestWithoutAccessNothingIsGoneAndNothingFails(t *testing.T) {
	p := start(t, Options{Access: noAccess{}})
	r := apply(t, p, request())
	if r.State != network.StatePending || !strings.Contains(r.Message, "neither approved") {
		t.Errorf("Apply = %+v", r)
	}
	if left, err := p.Delete(t.Context(), request().Ref()); err != nil || left.State != network.StateLeaving {
		t.Errorf("Delete = %+v, %v", left, err)
	}
	if refs, err := p.List(t.Context()); err == nil {
		t.Errorf("List = %v without knowing", refs)
	}
	if p.Ready() == nil {
		t.Error("ready")
	}
}

func TestThoseWhoAskedTooEarlyAreToldWhenTheListIsComplete(t *testing.T) {
	a := newAPI(t)
	o := Options{Access: a, Node: "node-1", Provider: "cloud-hypervisor-provider", StateID: "state-1"}
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	events := p.Events(t.Context())
	if r := apply(t, p, request()); r.Reason != "NotConnected" {
		t.Fatalf("%+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) })
	defer func() { cancel(); running.Wait() }()
	if ref := <-events; ref != request().Ref() {
		t.Errorf("event of %v", ref)
	}
}

func TestAnInterruptedWatchGoesOn(t *testing.T) {
	a := newAPI(t)
	p := ready(t, start(t, Options{Access: a}))
	apply(t, p, request())
	a.endWatches()
	a.report(map[string]any{"state": "Ready", "tapDevice": map[string]any{"name": "mtap7"}})
	eventually(t, "the interface is ready", func() bool { return apply(t, p, request()).State == network.StateReady })
}

func TestOtherNodesAndStateDirectoriesAreLeftAlone(t *testing.T) {
	a := newAPI(t)
	p := ready(t, start(t, Options{Access: a}))
	apply(t, p, request())
	other := ready(t, start(t, Options{Access: a, StateID: "state-2"}))
	if refs, err := other.List(t.Context()); err != nil || len(refs) != 0 {
		t.Errorf("another state directory lists %v, %v", refs, err)
	}
	if refs, err := p.List(t.Context()); err != nil || len(refs) != 1 || refs[0] != request().Ref() {
		t.Errorf("List = %v, %v", refs, err)
	}
	a.mu.Lock()
	for _, o := range a.objects {
		o = o.DeepCopy()
		_ = unstructured.SetNestedField(o.Object, "node-2", "spec", "nodeRef", "name")
		a.objects = map[string]*unstructured.Unstructured{}
		o.SetUID("foreign")
		a.put("ADDED", o)
	}
	a.mu.Unlock()
	elsewhere := ready(t, start(t, Options{Access: a}))
	if r := apply(t, elsewhere, request()); r.State != network.StateFailed || r.Reason != "NameTaken" {
		t.Errorf("an object of another node: %+v", r)
	}
	if objects, _ := a.count(); objects != 1 {
		t.Error("the object of another node was deleted")
	}
}

func TestMissingPermissionIsToldAndNotRetriedAsIfItWereTrouble(t *testing.T) {
	a := newAPI(t)
	a.forbidden = true
	p := ready(t, start(t, Options{Access: a}))
	if r := apply(t, p, request()); r.State != network.StateFailed || r.Reason != "Forbidden" {
		t.Errorf("%+v", r)
	}
}

func TestBadDefinitionsNameTheField(t *testing.T) {
	p, err := New(Options{Access: noAccess{}, Node: "n", Provider: "p"})
	if err != nil {
		t.Fatal(err)
	}
	good := request().Interface
	for name, tc := range map[string]struct {
		change func(*network.Interface)
		field  string
	}{
		"no network":              {func(n *network.Interface) { n.NetworkID = "" }, "network_id"},
		"another scheme":          {func(n *network.Interface) { n.NetworkID = "http://a/b/c/d" }, "network_id"},
		"a part missing":          {func(n *network.Interface) { n.NetworkID = "ironcore-net://a/b/c" }, "network_id"},
		"a namespace with a dot":  {func(n *network.Interface) { n.NetworkID = "ironcore-net://../b/c/d" }, "network_id"},
		"no address":              {func(n *network.Interface) { n.IPs = []string{"10.0.0.256"} }, "ips[0]"},
		"two of one family":       {func(n *network.Interface) { n.IPs = []string{"10.0.0.1", "10.0.0.2"} }, "ips[1]"},
		"an address with a zone":  {func(n *network.Interface) { n.IPs = []string{"fe80::1%eth0"} }, "ips[0]"},
		"a prefix for an address": {func(n *network.Interface) { n.IPs = []string{"10.0.0.0/24"} }, "ips[0]"},
	} {
		bad := good
		tc.change(&bad)
		err := p.Validate("", []network.Interface{good, bad})
		var field *network.FieldError
		if !errors.As(err, &field) || field.Index != 1 || field.Field != tc.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := p.Validate("", []network.Interface{good}); err != nil {
		t.Errorf("a good one: %v", err)
	}
}

func TestABadHostNameFailsWithoutACall(t *testing.T) {
	a := newAPI(t)
	p := ready(t, start(t, Options{Access: a}))
	req := request()
	req.Hostname = "Not_A_Label"
	if r := apply(t, p, req); r.State != network.StateFailed {
		t.Errorf("%+v", r)
	}
	if _, writes := a.count(); writes != 0 {
		t.Error("the API server was asked")
	}
}

func TestAnErrorNamesTheServerAndNotTheRequest(t *testing.T) {
	cause := errors.New("connection refused")
	err := brief(fmt.Errorf("list: %w", &url.Error{Op: "Get", URL: "https://api.example:6443/apis/x?timeoutSeconds=417", Err: cause}))
	if err.Error() != "API server api.example:6443: connection refused" || !errors.Is(err, cause) {
		t.Error(err)
	}
	if err := brief(cause); err.Error() != cause.Error() {
		t.Error(err)
	}
}
