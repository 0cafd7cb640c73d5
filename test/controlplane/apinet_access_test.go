// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/apinet"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/apinet/access"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane"
)

func TestAccessToARealAPIServer(t *testing.T) {
	onRequest(t)
	f := startFabric(t)
	for _, c := range []struct {
		name string
		run  func(*fabric, *testing.T)
	}{
		{"a bootstrap token becomes a certificate in a file", (*fabric).bootstrapsToFile},
		{"a bootstrap token becomes a certificate in a Secret", (*fabric).bootstrapsToSecret},
		{"a certificate is renewed while a watch runs", (*fabric).renews},
		{"a request that nobody signs is given up after 30 seconds", (*fabric).timesOut},
		{"a request that is denied is told with its reason", (*fabric).denied},
		{"a token that is none is told", (*fabric).badToken},
		{"a token without the right to ask is told", (*fabric).powerlessToken},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.SetSigner(true, time.Hour)
			c.run(f, t)
		})
	}
}

// asked returns the requests for the certificate of a node, the eldest first.
func (f *fabric) asked(t *testing.T, node string) []certificatesv1.CertificateSigningRequest {
	t.Helper()
	var list certificatesv1.CertificateSigningRequestList
	if err := f.Client().List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	found := slices.DeleteFunc(list.Items, func(r certificatesv1.CertificateSigningRequest) bool {
		block, _ := pem.Decode(r.Spec.Request)
		asked, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return asked.Subject.CommonName != controlplane.NetworkPlugins().UserPrefix+node
	})
	slices.SortFunc(found, func(a, b certificatesv1.CertificateSigningRequest) int {
		return strings.Compare(a.ResourceVersion, b.ResourceVersion)
	})
	slices.SortStableFunc(found, func(a, b certificatesv1.CertificateSigningRequest) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return found
}

// expectRequest expects what ironcore's approver wants to see.
func expectRequest(t *testing.T, r certificatesv1.CertificateSigningRequest, by string) {
	t.Helper()
	block, _ := pem.Decode(r.Spec.Request)
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(asked.Subject.Organization, []string{controlplane.NetworkPlugins().Group}) || len(asked.Subject.Names) != 2 ||
		len(asked.DNSNames)+len(asked.IPAddresses)+len(asked.EmailAddresses)+len(asked.URIs) > 0 {
		t.Errorf("subject %v", asked.Subject)
	}
	if key, ok := asked.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		t.Errorf("key %T", asked.PublicKey)
	}
	want := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	if !slices.Equal(r.Spec.Usages, want) || r.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName || !strings.HasPrefix(r.Name, "csr-") {
		t.Errorf("%s: usages %v of %s", r.Name, r.Spec.Usages, r.Spec.SignerName)
	}
	if !strings.HasPrefix(r.Spec.Username, by) {
		t.Errorf("%s was asked for by %s", r.Name, r.Spec.Username)
	}
}

// leaf is the certificate in a kubeconfig.
func leaf(t *testing.T, kubeconfig string) *x509.Certificate {
	t.Helper()
	config := controlplane.LoadConfig(t, kubeconfig)
	block, _ := pem.Decode(config.CertData)
	if block == nil {
		t.Fatalf("no certificate in %s", kubeconfig)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (f *fabric) bootstrapsToFile(t *testing.T) {
	const node = "node-file"
	dir := t.TempDir()
	a := access.Options{
		Kubeconfig: filepath.Join(dir, "new", "kubeconfig"), Bootstrap: f.BootstrapKubeconfig(t, controlplane.NetworkPlugins()),
	}
	p, r := connected(t, f.plugin(t, apinet.Options{Node: node}, a)), nicRequest("machine-file", "10.0.1.1")
	applied(t, p, r)
	asked := f.asked(t, node)
	if len(asked) != 1 {
		t.Fatalf("%d requests", len(asked))
	}
	expectRequest(t, asked[0], "system:bootstrap:")
	if info, err := os.Stat(a.Kubeconfig); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kept as %v, %v", info, err)
	}
	// After a restart without the bootstrap file, and then as a kubeconfig like any other.
	if err := os.Remove(a.Bootstrap); err != nil {
		t.Fatal(err)
	}
	for _, again := range []access.Options{a, {Kubeconfig: a.Kubeconfig, Rotate: true}, {Kubeconfig: a.Kubeconfig}} {
		nicBecomes(t, connected(t, f.plugin(t, apinet.Options{Node: node}, again)), r, network.StatePending, "NotReady")
	}
	if asked := f.asked(t, node); len(asked) != 1 {
		t.Errorf("%d requests after restarts", len(asked))
	}
	nicGoes(t, p, r.Ref())
}

func (f *fabric) bootstrapsToSecret(t *testing.T) {
	const node, secret = "node-secret", "apinet-kubeconfig"
	f.Grant(t, "keeper", "keeper", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "create", "update"}})
	t.Setenv("KUBECONFIG", f.stranger(t, "keeper"))
	a := access.Options{
		SecretName: secret, SecretNamespace: fabricNamespace, Bootstrap: f.BootstrapKubeconfig(t, controlplane.NetworkPlugins()), Rotate: true,
	}
	connected(t, f.plugin(t, apinet.Options{Node: node}, a))
	var kept corev1.Secret
	if err := f.Client().Get(t.Context(), client.ObjectKey{Namespace: fabricNamespace, Name: secret}, &kept); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, kept.Data["kubeconfig"], 0o600); err != nil {
		t.Fatal(err)
	}
	if cn := leaf(t, file).Subject.CommonName; cn != controlplane.NetworkPlugins().UserPrefix+node {
		t.Errorf("kept for %s", cn)
	}
	a.Bootstrap = ""
	connected(t, f.plugin(t, apinet.Options{Node: node}, a))
	if asked := f.asked(t, node); len(asked) != 1 {
		t.Errorf("%d requests after a restart", len(asked))
	}
	// A Secret that has something else in it already is kept, and gets the key.
	kept.Data["kubeconfig"], kept.Data["other"] = []byte("nonsense"), []byte("kept")
	if err := f.Client().Update(t.Context(), &kept); err != nil {
		t.Fatal(err)
	}
	a.Bootstrap = f.BootstrapKubeconfig(t, controlplane.NetworkPlugins())
	connected(t, f.plugin(t, apinet.Options{Node: node}, a))
	if err := f.Client().Get(t.Context(), client.ObjectKeyFromObject(&kept), &kept); err != nil {
		t.Fatal(err)
	}
	if string(kept.Data["other"]) != "kept" || bytes.Equal(kept.Data["kubeconfig"], []byte("nonsense")) {
		t.Errorf("kept: %v", kept.Data)
	}
}

// renews looks on for two lives of a certificate: what is changed in the API is heard all the time, by one plugin that
// is never restarted.
func (f *fabric) renews(t *testing.T) {
	const node, life = "node-renew", 25 * time.Second
	f.SetSigner(true, life)
	a := access.Options{
		Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), Bootstrap: f.BootstrapKubeconfig(t, controlplane.NetworkPlugins()), Rotate: true,
	}
	p, r := connected(t, f.plugin(t, apinet.Options{Node: node}, a)), nicRequest("machine-renew", "10.0.1.2")
	if err := os.Remove(a.Bootstrap); err != nil {
		t.Fatal(err)
	}
	first := leaf(t, a.Kubeconfig)
	applied(t, p, r)
	var slowest time.Duration
	for i := 0; time.Now().Before(first.NotAfter.Add(life)); i++ {
		began := time.Now()
		f.reportTap(t, r.MachineID, fmt.Sprintf("tap%d", i))
		eventually(t, "the plugin hears of it", func() error {
			if err := p.Ready(); err != nil && strings.Contains(err.Error(), "expired") {
				t.Fatal(err)
			}
			if got, err := p.Observe(t.Context(), r.Ref()); err != nil || got.Tap != fmt.Sprintf("tap%d", i) {
				return errNotYet
			}
			return nil
		})
		slowest = max(slowest, time.Since(began))
		// What is written goes by the certificate in use.
		brief := nicRequest("machine-brief", "10.0.1.3")
		applied(t, p, brief)
		nicGoes(t, p, brief.Ref())
		time.Sleep(500 * time.Millisecond)
	}
	t.Logf("a change was heard of after %v at most", slowest)
	asked := f.asked(t, node)
	if len(asked) < 3 {
		t.Fatalf("%d requests in two lives of %v", len(asked), life)
	}
	for _, one := range asked[1:] {
		expectRequest(t, one, controlplane.NetworkPlugins().UserPrefix+node)
	}
	last := leaf(t, a.Kubeconfig)
	if !last.NotAfter.After(first.NotAfter.Add(life / 2)) {
		t.Errorf("the kept one is good until %v, the first was until %v", last.NotAfter, first.NotAfter)
	}
	if info, err := os.Stat(a.Kubeconfig); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kept as %v, %v", info, err)
	}
	f.SetSigner(true, time.Hour)
	nicGoes(t, p, r.Ref())
}

// refusal runs access until it says why there is none, and returns that and how long it took.
func (f *fabric) refusal(t *testing.T, node, bootstrap string) (said string, took time.Duration) {
	t.Helper()
	a, err := access.New(access.Options{
		Node: node, Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), Bootstrap: bootstrap, Rotate: true,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	before, began := a.Err().Error(), time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() {
		if client, err := a.Connect(ctx); err == nil && client != nil {
			t.Error("it has access")
		}
	})
	defer running.Wait()
	defer cancel()
	eventually(t, "it says why there is no access", func() error {
		if err := a.Err(); err == nil || err.Error() == before {
			return errNotYet
		}
		return nil
	})
	return a.Err().Error(), time.Since(began)
}

func (f *fabric) timesOut(t *testing.T) {
	f.SetSigner(false, 0)
	said, took := f.refusal(t, "node-unsigned", f.BootstrapKubeconfig(t, controlplane.NetworkPlugins()))
	if !strings.Contains(said, "was neither approved and signed nor denied within 30s") {
		t.Errorf("it says: %s", said)
	}
	if took < 30*time.Second || took > 60*time.Second {
		t.Errorf("it took %v", took)
	}
}

func (f *fabric) denied(t *testing.T) {
	const node = "node-denied"
	f.SetSigner(false, 0)
	var denying sync.WaitGroup
	defer denying.Wait()
	denying.Go(func() {
		end := time.Now().Add(patience)
		for time.Now().Before(end) && t.Context().Err() == nil {
			time.Sleep(50 * time.Millisecond)
			asked := f.asked(t, node)
			if len(asked) == 0 {
				continue
			}
			asked[0].Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
				Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "UnknownNode", Message: "no such node",
				LastUpdateTime: metav1.Now(),
			}}
			if err := f.Client().SubResource("approval").Update(t.Context(), &asked[0]); err == nil {
				return
			}
		}
	})
	said, _ := f.refusal(t, node, f.BootstrapKubeconfig(t, controlplane.NetworkPlugins()))
	if !strings.Contains(said, "Denied: UnknownNode no such node") {
		t.Errorf("it says: %s", said)
	}
}

// tokenKubeconfig is the bootstrap kubeconfig with another token.
func (f *fabric) badToken(t *testing.T) {
	bootstrap := f.BootstrapKubeconfig(t, controlplane.NetworkPlugins())
	token := controlplane.LoadConfig(t, bootstrap).BearerToken
	raw, err := os.ReadFile(bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bootstrap, bytes.ReplaceAll(raw, []byte(token), []byte("aaaaaa.bbbbbbbbbbbbbbbb")), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, _ := f.refusal(t, "node-bad", bootstrap); !strings.Contains(said, "Unauthorized") || strings.Contains(said, "bbbbbb") {
		t.Errorf("it says: %s", said)
	}
}

func (f *fabric) powerlessToken(t *testing.T) {
	role := controlplane.NetworkPlugins()
	role.Bootstrappers = "system:bootstrappers:nobody"
	said, _ := f.refusal(t, "node-powerless", f.BootstrapKubeconfig(t, role))
	if !strings.Contains(said, "create certificate signing request") || !strings.Contains(said, "forbidden") {
		t.Errorf("it says: %s", said)
	}
}
