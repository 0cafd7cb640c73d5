// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"os"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane"
)

// onRequest is for what takes minutes.
func onRequest(t *testing.T) {
	t.Helper()
	if os.Getenv("CONTROLPLANE") == "" {
		t.Skip("takes minutes: CONTROLPLANE=1 runs it")
	}
}

// as is a client with another identity.
func as(t *testing.T, config *rest.Config) client.WithWatch {
	t.Helper()
	scheme, err := controlplane.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// request asks for a client certificate as a network plugin does.
func request(t *testing.T, config *rest.Config, node string) (*certificatesv1.CertificateSigningRequest, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	role := controlplane.NetworkPlugins()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: role.UserPrefix + node, Organization: []string{role.Group}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	if err := as(t, config).Create(t.Context(), csr); err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return csr, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
}

// signed waits for the certificate of a request.
func signed(t *testing.T, c client.Client, csr *certificatesv1.CertificateSigningRequest) *x509.Certificate {
	t.Helper()
	eventually(t, "the request is signed", func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(csr), csr); err != nil {
			return err
		}
		if len(csr.Status.Certificate) == 0 {
			return errNotYet
		}
		return nil
	})
	block, _ := pem.Decode(csr.Status.Certificate)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func networkInterface(name string, ips ...any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": "net", "name": name},
		"spec": map[string]any{
			"nodeRef": map[string]any{"name": "node"}, "networkRef": map[string]any{"name": "network"}, "ips": ips, "hostname": "web",
		},
	}}
	object.SetGroupVersionKind(controlplane.NetworkInterfaceKind())
	return object
}

func TestTheControlPlaneIsWhatAPluginMeets(t *testing.T) {
	onRequest(t)
	cp := controlplane.Start(t, controlplane.Options{NetworkInterfaces: true})
	admin := cp.Client()
	if err := admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "net"}}); err != nil {
		t.Fatal(err)
	}
	bootstrap := controlplane.LoadConfig(t, cp.BootstrapKubeconfig(t, controlplane.NetworkPlugins()))

	t.Run("requests wait while nobody signs", func(t *testing.T) {
		cp.SetSigner(false, 0)
		csr, _ := request(t, bootstrap, "node")
		time.Sleep(2 * time.Second)
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(csr), csr); err != nil || len(csr.Status.Conditions) > 0 {
			t.Errorf("%v, conditions %v", err, csr.Status.Conditions)
		}
		cp.SetSigner(true, time.Hour)
		signed(t, admin, csr)
	})
	var plugin client.WithWatch
	t.Run("a bootstrap token leads to a certificate of the life that was set", func(t *testing.T) {
		cp.SetSigner(true, 2*time.Minute)
		csr, key := request(t, bootstrap, "node")
		cert := signed(t, admin, csr)
		if life := cert.NotAfter.Sub(cert.NotBefore); life < 2*time.Minute || life > 125*time.Second {
			t.Errorf("it lives for %v", life)
		}
		config := rest.AnonymousClientConfig(bootstrap)
		config.CertData, config.KeyData = csr.Status.Certificate, key
		plugin = as(t, config)
	})
	t.Run("the released role allows interfaces and nothing else", func(t *testing.T) {
		apply(t, plugin, networkInterface("a", "10.0.0.1"))
		if err := plugin.List(t.Context(), &corev1.SecretList{}); !apierrors.IsForbidden(err) {
			t.Errorf("list secrets: %v", err)
		}
		stranger, err := cp.Kubeconfig("stranger")
		if err != nil {
			t.Fatal(err)
		}
		err = as(t, controlplane.LoadConfig(t, stranger)).Get(t.Context(), client.ObjectKey{Namespace: "net", Name: "a"}, networkInterface("a"))
		if !apierrors.IsForbidden(err) {
			t.Errorf("a stranger: %v", err)
		}
	})
	t.Run("the rules of network interfaces", func(t *testing.T) { rules(t, plugin) })
	t.Run("watches end and data stays when the API server restarts", func(t *testing.T) {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(controlplane.NetworkInterfaceKind())
		watch, err := plugin.Watch(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		cp.RestartAPIServer(t)
		for deadline := time.After(patience); ; {
			select {
			case _, open := <-watch.ResultChan():
				if open {
					continue
				}
			case <-deadline:
				t.Fatal("the watch has not ended")
			}
			break
		}
		eventually(t, "the interface is still there", func() error {
			return plugin.Get(t.Context(), client.ObjectKey{Namespace: "net", Name: "a"}, networkInterface("a"))
		})
	})
}

func apply(t *testing.T, c client.Client, object *unstructured.Unstructured) {
	t.Helper()
	if err := tryApply(t, c, object); err != nil {
		t.Fatal(err)
	}
}

func tryApply(t *testing.T, c client.Client, object *unstructured.Unstructured) error {
	t.Helper()
	return c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("plugin"), client.ForceOwnership)
}

func rules(t *testing.T, c client.Client) {
	set := func(value any, path ...string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) {
			if err := unstructured.SetNestedField(u.Object, value, path...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, change := range map[string]func(*unstructured.Unstructured){
		"the node cannot change":              set("other", "spec", "nodeRef", "name"),
		"the network cannot change":           set("other", "spec", "networkRef", "name"),
		"IPs cannot change":                   set([]any{"10.0.0.2"}, "spec", "ips"),
		"IPs cannot go":                       func(u *unstructured.Unstructured) { unstructured.RemoveNestedField(u.Object, "spec", "ips") },
		"the host name cannot change":         set("other", "spec", "hostname"),
		"the host name cannot go":             func(u *unstructured.Unstructured) { unstructured.RemoveNestedField(u.Object, "spec", "hostname") },
		"an IP of another form is refused":    func(u *unstructured.Unstructured) { u.SetName("b"); set([]any{"10.0.0"}, "spec", "ips")(u) },
		"two IPs of one family are refused":   func(u *unstructured.Unstructured) { u.SetName("b"); set([]any{"fe::1", "fe::2"}, "spec", "ips")(u) },
		"a host name must be a DNS label":     func(u *unstructured.Unstructured) { u.SetName("b"); set("Web.x", "spec", "hostname")(u) },
		"an interface has to be on some node": func(u *unstructured.Unstructured) { u.SetName("b"); set("", "spec", "nodeRef", "name")(u) },
	} {
		object := networkInterface("a", "10.0.0.1")
		change(object)
		if err := tryApply(t, c, object); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, ips := range map[string][]any{"both": {"10.0.0.1", "fe::1"}, "none": {}} {
		if err := tryApply(t, c, networkInterface("with-"+name, ips...)); err != nil {
			t.Errorf("IPs of %s families: %v", name, err)
		}
	}
	apply(t, c, networkInterface("a", "10.0.0.1")) // the same again changes nothing
	status := networkInterface("a")
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(status), status); err != nil {
		t.Fatal(err)
	}
	set("Ready", "status", "state")(status)
	set("tap0", "status", "tapDevice", "name")(status)
	set(map[string]any{"domain": "0", "bus": "3", "slot": "0", "function": "1"}, "status", "pciAddress")(status)
	if err := c.Status().Update(t.Context(), status); !apierrors.IsForbidden(err) {
		t.Errorf("a plugin writes the status: %v", err)
	}
}
