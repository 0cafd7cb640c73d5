// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	computev1alpha1 "github.com/ironcore-dev/ironcore/api/compute/v1alpha1"
	corev1alpha1 "github.com/ironcore-dev/ironcore/api/core/v1alpha1"
	ipamv1alpha1 "github.com/ironcore-dev/ironcore/api/ipam/v1alpha1"
	networkingv1alpha1 "github.com/ironcore-dev/ironcore/api/networking/v1alpha1"
	storagev1alpha1 "github.com/ironcore-dev/ironcore/api/storage/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane/programs"
)

const (
	// ironcoreNamespace has the service by which kube-apiserver finds ironcore's.
	ironcoreNamespace = "ironcore-system"
	ironcoreService   = "ironcore-apiserver"
)

// ironcoreGroups are the API groups that ironcore's API server serves.
func ironcoreGroups() []string {
	return []string{
		"core.ironcore.dev", "compute.ironcore.dev", "storage.ironcore.dev", "networking.ironcore.dev", "ipam.ironcore.dev",
	}
}

func (cp *ControlPlane) startIronCore(t testing.TB) {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	serving, err := cp.ca.server(ironcoreService, ironcoreService+"."+ironcoreNamespace+".svc")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := serving.files(cp.dir, ironcoreService)
	if err != nil {
		t.Fatal(err)
	}
	// The one by which it asks poollets for consoles; the group is that of its own rights.
	toPoollets, err := cp.ca.client("ironcore-apiserver", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	poolletCert, poolletKey, err := toPoollets.files(cp.dir, "to-poollets")
	if err != nil {
		t.Fatal(err)
	}
	server := cp.run(t, programs.IronCoreAPIServer,
		"--etcd-servers="+cp.etcdURL, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--tls-cert-file="+cert, "--tls-private-key-file="+key,
		"--kubeconfig="+cp.adminFile, "--authentication-kubeconfig="+cp.adminFile, "--authorization-kubeconfig="+cp.adminFile,
		"--enable-priority-and-fairness=false",
		"--machinepoollet-client-certificate="+poolletCert, "--machinepoollet-client-key="+poolletKey,
		"--machinepoollet-certificate-authority="+cp.ca.file)
	cp.aggregate(t, port)
	needs := []*Process{cp.etcd, cp.api, server}
	for _, list := range []client.ObjectList{
		&computev1alpha1.MachineList{}, &storagev1alpha1.VolumeList{}, &networkingv1alpha1.NetworkList{},
		&ipamv1alpha1.PrefixList{}, &corev1alpha1.ResourceQuotaList{},
	} {
		eventually(t, "ironcore's resources are served", readyWithin, needs, func() error {
			ctx, cancel := bounded(t.Context())
			defer cancel()
			return cp.client.List(ctx, list)
		})
	}
	// It was seen to run no controller at all unless told which.
	cp.run(t, programs.ControllerManager,
		"--kubeconfig="+cp.adminFile, "--controllers=*", "--health-probe-bind-address=0", "--metrics-bind-address=0",
		"--zap-log-level=info", "--zap-stacktrace-level=panic")
}

// aggregate tells kube-apiserver which groups another server on loopback serves.
func (cp *ControlPlane) aggregate(t testing.TB, port int) {
	t.Helper()
	ca, err := os.ReadFile(cp.ca.file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := bounded(t.Context())
	defer cancel()
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ironcoreNamespace}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: ironcoreNamespace, Name: ironcoreService},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
		},
	}
	for _, group := range ironcoreGroups() {
		objects = append(objects, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": map[string]any{"name": "v1alpha1." + group},
			"spec": map[string]any{
				"group": group, "version": "v1alpha1", "groupPriorityMinimum": int64(2000), "versionPriority": int64(100),
				"caBundle": base64.StdEncoding.EncodeToString(ca),
				"service":  map[string]any{"namespace": ironcoreNamespace, "name": ironcoreService, "port": int64(port)},
			},
		}})
	}
	for _, object := range objects {
		if err := cp.client.Create(ctx, object); err != nil {
			t.Fatalf("create %s: %v", object.GetName(), err)
		}
	}
}

// PoolletOptions configures StartPoollet.
type PoolletOptions struct {
	// Pool is the name of the machine pool to announce.
	Pool string
	// Socket is the machine runtime's.
	Socket string
	// Args are more arguments of the machinepoollet.
	Args []string
}

// Poollet is a machinepoollet. It comes by its certificate as on a new server: by a bootstrap token.
type Poollet struct {
	*Process
	cp   *ControlPlane
	args []string
}

// StartPoollet runs a machinepoollet until the test ends.
func (cp *ControlPlane) StartPoollet(t testing.TB, o PoolletOptions) *Poollet {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	serving, err := cp.ca.server("machinepoollet")
	if err != nil {
		t.Fatal(err)
	}
	certs := filepath.Join(cp.dir, "poollet-"+o.Pool)
	if err := os.Mkdir(certs, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, _, err := serving.files(certs, "tls"); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(certs, "kubeconfig")
	p := &Poollet{cp: cp, args: append([]string{
		"--machine-pool-name=" + o.Pool, "--provider-id=test://" + o.Pool, "--machine-runtime-endpoint=unix://" + o.Socket,
		"--bootstrap-kubeconfig=" + cp.BootstrapKubeconfig(t, MachinePools()), "--kubeconfig=" + kubeconfig,
		"--rotate-certificates", "--leader-election-kubeconfig=" + cp.adminFile,
		fmt.Sprintf("--address=127.0.0.1:%d", port), "--cert-dir=" + certs, "--client-ca-file=" + cp.ca.file,
		"--addresses-ip-override=127.0.0.1", "--addresses-hostname-override=localhost",
		"--health-probe-bind-address=0", "--metrics-bind-address=0", "--zap-stacktrace-level=panic",
	}, o.Args...)}
	p.Start(t)
	return p
}

// Start runs it again, after Stop or Kill.
func (p *Poollet) Start(t testing.TB) {
	t.Helper()
	p.Process = p.cp.run(t, programs.MachinePoollet, p.args...)
}
