// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package apinet

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/networktest"
)

func TestThePluginKeepsWhatEveryPluginPromises(t *testing.T) {
	a := newAPI(t)
	a.obliging = true
	good := network.Interface{NetworkID: "ironcore-net://ns-1/net-1/42/uid", IPs: []string{"10.0.0.1"}}
	same, other, bad := good, good, good
	same.Attributes = map[string]string{"rawNetworkLabels": "{}"}
	other.IPs = []string{"10.0.0.2"}
	bad.NetworkID = "bridge0"
	networktest.Conformance(t, networktest.Setup{
		New:      func(t *testing.T) network.Plugin { return ready(t, start(t, Options{Access: a})) },
		Request:  good,
		Same:     &same,
		Other:    &other,
		Bad:      map[string]networktest.Bad{"a bridge for a network": {NICs: []network.Interface{good, bad}, Index: 1, Field: "network_id"}},
		Eventful: true,
		Occupy:   func(_ *testing.T, ref network.Ref) func() error { return a.occupy(ref) },
	})
}

// occupy puts an object of another node where ref's would be.
func (a *api) occupy(ref network.Ref) (untouched func() error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := keysOf("cloud-hypervisor-provider")
	o := k.manifest(object{
		namespace: "ns-1", name: objectName(ref), machine: ref.MachineID, nic: ref.Name, node: "node-2", network: "net-9",
	})
	o.SetUID("foreign")
	a.put("ADDED", o)
	version := a.objects["ns-1/"+o.GetName()].GetResourceVersion()
	return func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		now := a.objects["ns-1/"+o.GetName()]
		node, _, _ := unstructured.NestedString(a.nowOrEmpty(now), "spec", "nodeRef", "name")
		if node != "node-2" || version == "" {
			return fmt.Errorf("the object of the other node is %v", now)
		}
		return nil
	}
}

func (a *api) nowOrEmpty(o *unstructured.Unstructured) map[string]any {
	if o == nil {
		return nil
	}
	return o.Object
}
