// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane/programs"
)

// frontProxy is the name by which kube-apiserver speaks for its users to aggregated servers.
const frontProxy = "front-proxy"

func (cp *ControlPlane) startEtcd(t testing.TB) {
	t.Helper()
	var urls [2]string
	for i := range urls {
		port, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		urls[i] = fmt.Sprintf("http://127.0.0.1:%d", port)
	}
	cp.etcdURL = urls[0]
	cp.etcd = cp.run(t, programs.Etcd,
		"--name=test", "--data-dir="+filepath.Join(cp.dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+urls[0], "--advertise-client-urls="+urls[0],
		"--listen-peer-urls="+urls[1], "--initial-advertise-peer-urls="+urls[1], "--initial-cluster=test="+urls[1])
	// Nobody waits for it: kube-apiserver does.
}

// prepareAPIServer makes the certificates and arguments of kube-apiserver.
func (cp *ControlPlane) prepareAPIServer() error {
	serving, err := cp.ca.server("kube-apiserver", "kubernetes.default.svc")
	if err != nil {
		return err
	}
	cert, key, err := serving.files(cp.dir, "kube-apiserver")
	if err != nil {
		return err
	}
	proxy, err := cp.frontCA.client(frontProxy)
	if err != nil {
		return err
	}
	proxyCert, proxyKey, err := proxy.files(cp.dir, frontProxy)
	if err != nil {
		return err
	}
	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	encoded, err := encodeKey(accounts)
	if err != nil {
		return err
	}
	accountsFile := filepath.Join(cp.dir, "service-accounts.key")
	if err := os.WriteFile(accountsFile, encoded, 0o600); err != nil {
		return err
	}
	cp.apiArgs = []string{
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", cp.apiPort),
		"--tls-cert-file=" + cert, "--tls-private-key-file=" + key, "--client-ca-file=" + cp.ca.file,
		"--authorization-mode=RBAC", "--enable-bootstrap-token-auth=true",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + accountsFile, "--service-account-signing-key-file=" + accountsFile,
		"--service-cluster-ip-range=10.0.0.0/24", "--disable-admission-plugins=ServiceAccount",
		"--endpoint-reconciler-type=none",
		"--requestheader-client-ca-file=" + cp.frontCA.file, "--requestheader-allowed-names=" + frontProxy,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + proxyCert, "--proxy-client-key-file=" + proxyKey,
	}
	return nil
}

func (cp *ControlPlane) startAPIServer(t testing.TB) {
	t.Helper()
	cp.api = cp.run(t, programs.KubeAPIServer, append([]string{"--etcd-servers=" + cp.etcdURL}, cp.apiArgs...)...)
	eventually(t, "kube-apiserver is ready", readyWithin, []*Process{cp.etcd, cp.api}, func() error {
		return ready(t.Context(), cp.admin)
	})
}

// StopAPIServer ends kube-apiserver as an outage does: at once. Whatever it knew is kept.
func (cp *ControlPlane) StopAPIServer() { cp.api.Kill() }

// StartAPIServer runs it again, on the same port, and waits until it is ready.
func (cp *ControlPlane) StartAPIServer(t testing.TB) {
	t.Helper()
	cp.startAPIServer(t)
}

// RestartAPIServer is an outage of kube-apiserver of some seconds, in which all watches end.
func (cp *ControlPlane) RestartAPIServer(t testing.TB) {
	t.Helper()
	cp.StopAPIServer()
	cp.StartAPIServer(t)
}

// ready asks a server whether it is ready to serve.
func ready(ctx context.Context, config *rest.Config) error {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz", nil)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz answers %s", answer.Status)
	}
	return nil
}
