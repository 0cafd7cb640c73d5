// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// What is asked for. ironcore's approver takes exactly these two usages with an elliptic key; it reads the role from
// the organisation.
const (
	commonNamePrefix = "networking.ironcore.dev:system:networkplugin:"
	organization     = "networking.ironcore.dev:system:networkplugins"
	signer           = "kubernetes.io/kube-apiserver-client"
)

var requests = schema.GroupVersionResource{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"}

// requestCertificate makes a key, asks for its certificate and waits for it. Key and certificate are PEM.
func requestCertificate(ctx context.Context, client dynamic.Interface, node string, patience time.Duration) (key, cert []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: commonNamePrefix + node, Organization: []string{organization}},
	}, private)
	if err != nil {
		return nil, nil, err
	}
	created, err := client.Resource(requests).Create(ctx, csrObject(csr), metav1.CreateOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("create certificate signing request: %w", err)
	}
	cert, err = awaitCertificate(ctx, client, created.GetName(), patience)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), cert, nil
}

func csrObject(der []byte) *unstructured.Unstructured {
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": requests.GroupVersion().String(), "kind": "CertificateSigningRequest",
		"metadata": map[string]any{"generateName": "csr-"},
		"spec": map[string]any{
			"request": base64.StdEncoding.EncodeToString(text), "signerName": signer,
			"usages": []any{"digital signature", "client auth"},
		},
	}}
}

// pollInterval is how often a request is looked at: bootstrap roles allow to get one, but not always to watch.
const pollInterval = 500 * time.Millisecond

func awaitCertificate(ctx context.Context, client dynamic.Interface, name string, patience time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience,
		fmt.Errorf("certificate signing request %s was neither approved and signed nor denied within %s", name, patience))
	defer cancel()
	for {
		csr, err := client.Resource(requests).Get(ctx, name, metav1.GetOptions{})
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			return nil, fmt.Errorf("read certificate signing request: %w", err)
		case err == nil:
			cert, err := issued(csr)
			if err != nil || cert != nil {
				return cert, err
			}
		}
		if sleep(ctx, pollInterval) != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// issued returns the certificate of a request, nil if there is none yet, an error if there never will be.
func issued(csr *unstructured.Unstructured) ([]byte, error) {
	conditions, _, _ := unstructured.NestedSlice(csr.Object, "status", "conditions")
	for _, c := range conditions {
		condition, ok := c.(map[string]any)
		if !ok {
			continue
		}
		if kind := condition["type"]; kind == "Denied" || kind == "Failed" {
			return nil, fmt.Errorf("certificate signing request %s: %v: %v %v", csr.GetName(), kind, condition["reason"], condition["message"])
		}
	}
	text, _, _ := unstructured.NestedString(csr.Object, "status", "certificate")
	if text == "" {
		return nil, nil
	}
	cert, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	if block, _ := pem.Decode(cert); block == nil {
		return nil, errors.New("what was issued is no certificate")
	}
	return cert, nil
}
