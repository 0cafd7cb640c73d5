// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	_ "embed" // for the definition
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

//go:embed networkinterfaces.yaml
var networkInterfaces []byte

// NetworkInterfaceKind is what ironcore-net's network interfaces are called.
func NetworkInterfaceKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "core.apinet.ironcore.dev", Version: "v1alpha1", Kind: "NetworkInterface"}
}

func (cp *ControlPlane) serveNetworkInterfaces(t testing.TB) {
	t.Helper()
	if err := cp.Apply(t.Context(), networkInterfaces); err != nil {
		t.Fatal(err)
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(NetworkInterfaceKind())
	eventually(t, "network interfaces are served", readyWithin, []*Process{cp.etcd, cp.api}, func() error {
		ctx, cancel := bounded(t.Context())
		defer cancel()
		return cp.client.List(ctx, list)
	})
}
