// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package apinet

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// resource is that of NetworkInterface objects.
var resource = schema.GroupVersionResource{Group: "core.apinet.ironcore.dev", Version: "v1alpha1", Resource: "networkinterfaces"}

// scheme precedes network ids and handles.
const scheme = "ironcore-net://"

// networkID is the parsed form of "ironcore-net://<namespace>/<network>/<id>/<uid>".
type networkID struct{ namespace, network string }

// label is a DNS label of RFC 1123, which namespaces, networks and host names are.
var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func parseNetworkID(text string) (networkID, error) {
	rest, ok := strings.CutPrefix(text, scheme)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 4 || slices.Contains(parts, "") {
		return networkID{}, fmt.Errorf("%q is not of the form %s<namespace>/<network>/<id>/<uid>", text, scheme)
	}
	for _, p := range parts[:2] {
		if !label.MatchString(p) {
			return networkID{}, fmt.Errorf("%q in %q is no DNS label", p, text)
		}
	}
	return networkID{namespace: parts[0], network: parts[1]}, nil
}

// checkIPs refuses what the API server would: addresses that are none, and two of one family.
func checkIPs(ips []string) (field int, err error) {
	var seen [2]bool
	for i, text := range ips {
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Zone() != "" {
			return i, fmt.Errorf("%q is no IP address", text)
		}
		family := 0
		if ip.Is6() {
			family = 1
		}
		if seen[family] {
			return i, fmt.Errorf("%q is the second address of its family, one of each is possible", text)
		}
		seen[family] = true
	}
	return 0, nil
}

// objectName is the same for an interface at any time, and unique in any namespace: a UUID of version 5 whose hash is
// SHA-256.
func objectName(ref network.Ref) string {
	return uuid.NewHash(sha256.New(), uuid.Nil, []byte(ref.String()), 5).String()
}

// keys are the label and annotation names of one provider.
type keys struct{ machine, state, nic string }

func keysOf(provider string) keys {
	return keys{
		machine: provider + ".ironcore.dev/machine-id",
		state:   provider + ".ironcore.dev/state-id",
		nic:     provider + ".ironcore.dev/network-interface",
	}
}

// object is a NetworkInterface as this package sees one.
type object struct {
	namespace, name, uid string
	deleting             bool
	machine, nic, state  string // who it belongs to, and under which state directory it was made
	node, network        string
	ips                  []string
	hostname             string

	status string // "Ready", "Pending", "Error" or anything
	tap    string
	pci    string // "0000:3b:02.1"
}

func (k keys) read(u *unstructured.Unstructured) object {
	text := func(fields ...string) string {
		s, _, _ := unstructured.NestedString(u.Object, fields...)
		return s
	}
	ips, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "ips")
	o := object{
		namespace: u.GetNamespace(), name: u.GetName(), uid: string(u.GetUID()), deleting: u.GetDeletionTimestamp() != nil,
		machine: u.GetLabels()[k.machine], state: u.GetLabels()[k.state], nic: u.GetAnnotations()[k.nic],
		node: text("spec", "nodeRef", "name"), network: text("spec", "networkRef", "name"), ips: ips,
		hostname: text("spec", "hostname"),
		status:   text("status", "state"), tap: text("status", "tapDevice", "name"),
	}
	if bus := text("status", "pciAddress", "bus"); bus != "" {
		o.pci = pciAddress(text("status", "pciAddress", "domain"), bus, text("status", "pciAddress", "slot"), text("status", "pciAddress", "function"))
	}
	return o
}

// tapName is what Linux lets a network interface be called, less what is a trap.
var tapName = regexp.MustCompile(`^[A-Za-z0-9_][-A-Za-z0-9_.]{0,14}$`)

// pciAddress puts an address together as sysfs writes it. Its parts are hexadecimal, with or without leading zeros, and
// an absent one is zero. What is no address is left as it is, for the one who binds to refuse.
func pciAddress(parts ...string) string {
	var n [4]uint64
	for i, p := range parts {
		if p == "" {
			continue
		}
		var err error
		if n[i], err = strconv.ParseUint(p, 16, 16); err != nil {
			return strings.Join(parts[:3], ":") + "." + parts[3]
		}
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3])
}

// sameSpec reports whether what cannot be changed in place is equal.
func (o object) sameSpec(w object) bool {
	return o.namespace == w.namespace && o.node == w.node && o.network == w.network && o.hostname == w.hostname &&
		slices.EqualFunc(o.ips, w.ips, sameIP)
}

// sameIP compares addresses as such: the API server may write them in another way.
func sameIP(a, b string) bool {
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	if errX != nil || errY != nil {
		return a == b
	}
	return x == y
}

// manifest is what is applied.
func (k keys) manifest(o object) *unstructured.Unstructured {
	spec := map[string]any{
		"nodeRef": map[string]any{"name": o.node}, "networkRef": map[string]any{"name": o.network},
	}
	if len(o.ips) > 0 {
		ips := make([]any, len(o.ips))
		for i, ip := range o.ips {
			ips[i] = ip
		}
		spec["ips"] = ips
	}
	if o.hostname != "" {
		spec["hostname"] = o.hostname
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": "NetworkInterface",
		"metadata": map[string]any{
			"namespace": o.namespace, "name": o.name,
			"labels":      map[string]any{k.machine: o.machine, k.state: o.state},
			"annotations": map[string]any{k.nic: o.nic},
		},
		"spec": spec,
	}}
}

func (o object) ref() network.Ref { return network.Ref{MachineID: o.machine, Name: o.nic} }

func (o object) handle() string {
	return scheme + o.namespace + "/" + o.name + "/" + o.node + "/" + o.uid
}
