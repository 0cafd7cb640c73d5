// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	computev1alpha1 "github.com/ironcore-dev/ironcore/api/compute/v1alpha1"
	corev1alpha1 "github.com/ironcore-dev/ironcore/api/core/v1alpha1"
	ipamv1alpha1 "github.com/ironcore-dev/ironcore/api/ipam/v1alpha1"
	networkingv1alpha1 "github.com/ironcore-dev/ironcore/api/networking/v1alpha1"
	storagev1alpha1 "github.com/ironcore-dev/ironcore/api/storage/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane/programs"
)

const (
	// readyWithin is how long a server may take to become ready on a busy host; on an idle one it takes 4 seconds.
	readyWithin = 3 * time.Minute
	// callWithin bounds what the harness itself asks of an API server.
	callWithin = time.Minute
	// owner is the field manager of what the harness applies.
	owner = client.FieldOwner("controlplane-test")
)

// Options configures Start.
type Options struct {
	// NetworkInterfaces serves networkinterfaces.core.apinet.ironcore.dev as a custom resource.
	NetworkInterfaces bool
	// IronCore runs ironcore's API server and controller manager, which serve and look after machines.
	IronCore bool
}

// ControlPlane is a running control plane. Its methods are for the test that started it.
type ControlPlane struct {
	programs  programs.Set
	dir       string
	ca        *authority
	frontCA   *authority
	etcdURL   string
	apiPort   int
	apiArgs   []string
	admin     *rest.Config
	adminFile string
	client    client.WithWatch
	signer    *signer
	processes []*Process // in the order they were started
	etcd      *Process
	api       *Process
}

// Start runs a control plane until the test ends. It takes some seconds, and minutes if the programs are not built yet.
func Start(t testing.TB, o Options) *ControlPlane {
	t.Helper()
	set, err := programs.Build(t.Context(), programs.Options{Say: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "chpcp")
	if err != nil {
		t.Fatal(err)
	}
	cp := &ControlPlane{programs: set, dir: dir}
	t.Cleanup(func() { cp.end(t) })
	began := time.Now()
	if err := cp.prepare(); err != nil {
		t.Fatal(err)
	}
	cp.startEtcd(t)
	cp.startAPIServer(t)
	cp.signer = startSigner(t, cp)
	if err := cp.grantShippedRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o.NetworkInterfaces {
		cp.serveNetworkInterfaces(t)
	}
	if o.IronCore {
		cp.startIronCore(t)
	}
	t.Logf("the control plane is ready after %v", time.Since(began).Round(100*time.Millisecond))
	return cp
}

// Dir is a directory for files of the test, removed at its end; its path is short enough for sockets.
func (cp *ControlPlane) Dir() string { return cp.dir }

// Programs are the built programs.
func (cp *ControlPlane) Programs() programs.Set { return cp.programs }

// AdminConfig is the configuration of a client that may do everything. It is a copy.
func (cp *ControlPlane) AdminConfig() *rest.Config { return rest.CopyConfig(cp.admin) }

// AdminKubeconfig is a file with the same.
func (cp *ControlPlane) AdminKubeconfig() string { return cp.adminFile }

// Client may do everything. It knows the types of Kubernetes and ironcore, and unstructured objects.
func (cp *ControlPlane) Client() client.WithWatch { return cp.client }

// Scheme knows the types of Kubernetes and ironcore.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, corev1alpha1.AddToScheme, computev1alpha1.AddToScheme,
		networkingv1alpha1.AddToScheme, storagev1alpha1.AddToScheme, ipamv1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

// prepare makes authorities and the administrator.
func (cp *ControlPlane) prepare() error {
	var err error
	if cp.ca, err = newAuthority(cp.dir, "ca"); err != nil {
		return fmt.Errorf("make a certificate authority: %w", err)
	}
	if cp.frontCA, err = newAuthority(cp.dir, "front-ca"); err != nil {
		return fmt.Errorf("make a certificate authority: %w", err)
	}
	if cp.apiPort, err = freePort(); err != nil {
		return err
	}
	if cp.adminFile, err = cp.Kubeconfig("admin", "system:masters"); err != nil {
		return err
	}
	if cp.admin, err = loadConfig(cp.adminFile); err != nil {
		return err
	}
	cp.admin.QPS = -1 // no limit
	scheme, err := Scheme()
	if err != nil {
		return err
	}
	if err := cp.prepareAPIServer(); err != nil {
		return err
	}
	// Asking what the server serves is left for the first call, when it runs.
	cp.client, err = client.NewWithWatch(cp.admin, client.Options{Scheme: scheme})
	return err
}

// keep remembers a process, so that end ends it and tells its log.
func (cp *ControlPlane) keep(p *Process) { cp.processes = append(cp.processes, p) }

// end ends everything, the last first.
func (cp *ControlPlane) end(t testing.TB) {
	if cp.signer != nil {
		cp.signer.stop()
	}
	for i := len(cp.processes) - 1; i >= 0; i-- {
		cp.processes[i].Kill() // nobody needs their data
	}
	if !t.Failed() {
		if err := os.RemoveAll(cp.dir); err != nil {
			t.Errorf("remove the control plane's directory: %v", err)
		}
		return
	}
	t.Logf("the control plane's files are left in %s", cp.dir)
	seen := map[string]bool{}
	for _, p := range cp.processes {
		if !seen[p.log] {
			seen[p.log] = true
			t.Logf("the end of %s:\n%s", p.log, p.Log())
		}
	}
}

// run starts one of the programs of the control plane.
func (cp *ControlPlane) run(t testing.TB, program string, args ...string) *Process {
	t.Helper()
	p, err := StartProcess(filepath.Join(cp.dir, program+".log"), cp.programs.Path(program), nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	cp.keep(p)
	return p
}

// freePort returns a port on loopback that nobody listens on at this moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// bounded is a context for one call of the harness.
func bounded(parent context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(parent, callWithin)
}
