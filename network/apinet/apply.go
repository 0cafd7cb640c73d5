// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package apinet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/macvtap"
)

// Apply declares the interface. What cannot be changed in place is deleted, and declared again once it is gone.
func (p *Plugin) Apply(ctx context.Context, req network.Request) (network.Result, error) {
	want, err := p.want(req)
	if err != nil {
		return network.Result{State: network.StateFailed, Reason: "Invalid", Message: err.Error()}, nil
	}
	objects, client, complete := p.known(req.Ref())
	if !complete {
		return p.notConnected(), nil
	}
	if len(objects) > 0 {
		o := objects[0]
		if o.deleting || !o.sameSpec(want) {
			return p.replace(ctx, client, o)
		}
		return p.result(ctx, o, req.MAC)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	applied, err := client.Resource(resource).Namespace(want.namespace).Apply(ctx, want.name, p.keys.manifest(want),
		metav1.ApplyOptions{FieldManager: "networking.ironcore.dev/" + p.o.Provider, Force: true})
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return p.refused(ctx, client, want, err)
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return network.Result{State: network.StateFailed, Reason: "Forbidden", Message: err.Error()}, nil
	case err != nil:
		return network.Result{}, fmt.Errorf("apply network interface %s/%s: %w", want.namespace, want.name, err)
	}
	o := p.keys.read(applied)
	return p.result(ctx, p.applied(o), req.MAC)
}

func (p *Plugin) want(req network.Request) (object, error) {
	id, err := parseNetworkID(req.Interface.NetworkID)
	if err != nil {
		return object{}, err
	}
	if _, err := checkIPs(req.Interface.IPs); err != nil {
		return object{}, err
	}
	if req.Hostname != "" && !label.MatchString(req.Hostname) {
		return object{}, fmt.Errorf("host name %q is no DNS label", req.Hostname)
	}
	return object{
		namespace: id.namespace, name: objectName(req.Ref()), machine: req.MachineID, nic: req.Interface.Name,
		state: p.o.StateID, node: p.o.Node, network: id.network, ips: slices.Clone(req.Interface.IPs), hostname: req.Hostname,
	}, nil
}

func (p *Plugin) notConnected() network.Result {
	r := network.Result{State: network.StatePending, Reason: "NotConnected", Message: "the API server of ironcore-net is not connected"}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.trouble(); err != nil {
		r.Message += ": " + err.Error()
	}
	return r
}

// refused tells an object that is in the way, which no watch of ours shows, from one that can never be.
func (p *Plugin) refused(ctx context.Context, client dynamic.Interface, want object, cause error) (network.Result, error) {
	failed := network.Result{State: network.StateFailed, Reason: "Refused", Message: cause.Error()}
	there, err := client.Resource(resource).Namespace(want.namespace).Get(ctx, want.name, metav1.GetOptions{})
	if err != nil {
		return failed, nil //nolint:nilerr // the cause is what is told
	}
	o := p.keys.read(there)
	if o.machine != want.machine || o.node != want.node {
		failed.Reason = "NameTaken"
		failed.Message = fmt.Sprintf("network interface %s/%s belongs to machine %q on node %q", o.namespace, o.name, o.machine, o.node)
		return failed, nil
	}
	return p.replace(ctx, client, o)
}

// replace deletes an object so that another can take its place. A PCI function stays taken, since a VMM may have it; the
// interface's Delete gives it back.
func (p *Plugin) replace(ctx context.Context, client dynamic.Interface, o object) (network.Result, error) {
	if err := p.remove(ctx, client, o); err != nil {
		return network.Result{}, err
	}
	return network.Result{
		State: network.StatePending, Reason: "Replacing",
		Message: fmt.Sprintf("network interface %s/%s is being deleted, so that it can be made anew", o.namespace, o.name),
	}, nil
}

// restore undoes on this host what was made for an interface, also for one whose object somebody else deleted.
func (p *Plugin) restore(ctx context.Context, ref network.Ref) error {
	if p.o.Taps != nil {
		if err := p.o.Taps.Disconnect(ctx, Name, ref); err != nil {
			return fmt.Errorf("disconnect %s from its tap: %w", ref, err)
		}
	}
	if p.o.Functions == nil {
		return nil
	}
	if err := p.o.Functions.Restore(ctx, ref.String()); err != nil {
		return fmt.Errorf("give back the PCI function of %s: %w", ref, err)
	}
	return nil
}

// remove asks for the end of exactly this object.
func (p *Plugin) remove(ctx context.Context, client dynamic.Interface, o object) error {
	if o.deleting {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	uid := types.UID(o.uid)
	err := client.Resource(resource).Namespace(o.namespace).Delete(ctx, o.name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // this very one is gone; the watch will say so, too
		p.mu.Lock()
		p.forget(o)
		p.tell(o.ref())
		p.mu.Unlock()
		return nil
	case err != nil:
		return fmt.Errorf("delete network interface %s/%s: %w", o.namespace, o.name, err)
	}
	p.mu.Lock()
	p.asked(o)
	p.mu.Unlock()
	return nil
}

// result reads an object's status, and makes ready what it names.
func (p *Plugin) result(ctx context.Context, o object, mac string) (network.Result, error) {
	r := p.status(o)
	r.MAC = mac
	switch {
	case r.Backend == network.BackendPCI:
		if err := p.o.Functions.Bind(ctx, o.pci, o.ref().String()); err != nil {
			return network.Result{}, fmt.Errorf("bind PCI function %s: %w", o.pci, err)
		}
	case r.Backend == network.BackendTap && p.o.Taps != nil:
		return p.connect(ctx, o, r)
	}
	return r, nil
}

func (p *Plugin) connect(ctx context.Context, o object, r network.Result) (network.Result, error) {
	tap, err := p.o.Taps.Connect(ctx, o.tap, Name, o.ref(), r.MAC)
	failed := network.Result{Handle: r.Handle, MAC: r.MAC}
	switch {
	case errors.Is(err, macvtap.ErrNoDevice):
		failed.State, failed.Reason = network.StatePending, "DeviceMissing"
		failed.Message = fmt.Sprintf("ironcore-net names tap %q, which this host does not have", o.tap)
		return failed, nil
	case errors.Is(err, macvtap.ErrNotOwner):
		failed.State, failed.Reason, failed.Message = network.StateFailed, "DeviceForeign", err.Error()
		return failed, nil
	case err != nil:
		return network.Result{}, fmt.Errorf("connect to tap %s: %w", o.tap, err)
	}
	r.Tap = tap
	return r, nil
}

// status reads an object's status.
func (p *Plugin) status(o object) network.Result {
	r := network.Result{State: network.StatePending, Reason: "NotReady", Handle: o.handle()}
	switch {
	case o.deleting:
		r.State, r.Reason, r.Message = network.StateLeaving, "Deleting", "the object is being deleted"
	case o.status == "Error":
		r.State, r.Reason, r.Message = network.StateFailed, "Error", "ironcore-net reports an error for "+o.namespace+"/"+o.name
	case o.status != "Ready":
		r.Message = fmt.Sprintf("ironcore-net reports %q for %s/%s", cmp.Or(o.status, "nothing"), o.namespace, o.name)
	case o.pci != "" && p.o.Functions == nil:
		r.State, r.Reason = network.StateFailed, "PCINotPossible"
		r.Message = "ironcore-net hands out PCI function " + o.pci + ", which this host cannot give to guests"
	case o.pci != "":
		r.State, r.Reason, r.Backend, r.PCI = network.StateReady, "", network.BackendPCI, o.pci
	case o.tap != "" && !tapName.MatchString(o.tap):
		r.State, r.Reason = network.StateFailed, "BadDevice"
		r.Message = fmt.Sprintf("ironcore-net names tap %q, which no network interface can be called", o.tap)
	case o.tap != "":
		r.State, r.Reason, r.Backend, r.Tap = network.StateReady, "", network.BackendTap, o.tap
	default:
		r.Reason, r.Message = "NoDevice", "the object is ready and names neither a tap nor a PCI function"
	}
	return r
}

// Observe reads the object's status as last heard.
func (p *Plugin) Observe(ctx context.Context, ref network.Ref) (network.Result, error) {
	if err := ctx.Err(); err != nil {
		return network.Result{}, err
	}
	objects, _, complete := p.known(ref)
	switch {
	case !complete:
		return p.notConnected(), nil
	case len(objects) == 0:
		return network.Result{State: network.StateAbsent}, nil
	}
	r := p.status(objects[0])
	if r.Backend == network.BackendTap && p.o.Taps != nil {
		r.Tap = p.o.Taps.Find(ctx, r.Tap, Name, ref)
	}
	return r, nil
}

// Delete asks for the end of the interface's object and tells when it is gone. Without a complete list nothing is
// known to be gone.
func (p *Plugin) Delete(ctx context.Context, ref network.Ref) (network.Result, error) {
	objects, client, complete := p.known(ref)
	if !complete {
		r := p.notConnected()
		r.State = network.StateLeaving
		return r, nil
	}
	if err := p.restore(ctx, ref); err != nil {
		return network.Result{}, err
	}
	for _, o := range objects {
		if err := p.remove(ctx, client, o); err != nil {
			return network.Result{}, err
		}
	}
	left, _, _ := p.known(ref)
	if len(left) == 0 {
		return network.Result{State: network.StateAbsent}, nil
	}
	return network.Result{
		State: network.StateLeaving, Reason: "Deleting", Handle: left[0].handle(),
		Message: fmt.Sprintf("network interface %s/%s is being deleted", left[0].namespace, left[0].name),
	}, nil
}

// List returns the interfaces whose objects this node made under this state directory. Others of this node are told in
// the log: their state is elsewhere, or lost.
func (p *Plugin) List(ctx context.Context) ([]network.Ref, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.synced {
		return nil, fmt.Errorf("list network interfaces: %w", cmp.Or(p.trouble(), errors.New("not connected yet")))
	}
	var refs []network.Ref
	for ref, objects := range p.objects {
		if slices.ContainsFunc(objects, func(o object) bool { return o.state == p.o.StateID && p.o.StateID != "" }) {
			refs = append(refs, ref)
		}
	}
	slices.SortFunc(refs, func(a, b network.Ref) int { return cmp.Compare(a.String(), b.String()) })
	return refs, nil
}
