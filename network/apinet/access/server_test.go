// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const token = "abcdef.0123456789abcdef"

// authority is an API server that issues client certificates, and lets in who shows one or the bootstrap token.
type authority struct {
	t      *testing.T
	server *httptest.Server
	caKey  *ecdsa.PrivateKey
	ca     *x509.Certificate
	caPEM  []byte

	mu       sync.Mutex
	life     time.Duration // of what is issued
	deny     bool
	silent   bool // requests are neither signed nor denied
	requests []seen
	csrs     map[string]map[string]any
	secrets  map[string]map[string]any
	callers  []string // who listed network interfaces
}

// seen is one request for a certificate.
type seen struct {
	by      string // common name or "token"
	subject string
	usages  []string
	signer  string
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, life: time.Hour, csrs: map[string]map[string]any{}, secrets: map[string]map[string]any{}}
	var err error
	if a.caKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.caKey.PublicKey, a.caKey)
	if err != nil {
		t.Fatal(err)
	}
	if a.ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.caPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool := x509.NewCertPool()
	pool.AddCert(a.ca)
	a.server = httptest.NewUnstartedServer(http.HandlerFunc(a.serve))
	a.server.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool}
	a.server.EnableHTTP2 = true
	a.server.StartTLS()
	t.Cleanup(a.server.Close)
	return a
}

// bootstrap writes a kubeconfig with the bootstrap token.
func (a *authority) bootstrap(dir string) string {
	a.t.Helper()
	serverCA := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.server.Certificate().Raw})
	path := filepath.Join(dir, "bootstrap.kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {token: %s}}]
`, a.server.URL, base64.StdEncoding.EncodeToString(serverCA), token)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

func (a *authority) set(change func(*authority)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

func (a *authority) asked() []seen {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]seen{}, a.requests...)
}

// caller says who makes a request, "" if nobody that is let in.
func caller(r *http.Request) string {
	if len(r.TLS.PeerCertificates) > 0 {
		if leaf := r.TLS.PeerCertificates[0]; time.Now().Before(leaf.NotAfter) {
			return leaf.Subject.CommonName
		}
		return ""
	}
	if r.Header.Get("Authorization") == "Bearer "+token {
		return "token"
	}
	return ""
}

func (a *authority) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	by := caller(r)
	name := filepath.Base(r.URL.Path)
	switch {
	case by == "":
		fail(w, http.StatusUnauthorized, "Unauthorized")
	case strings.HasSuffix(r.URL.Path, "/certificatesigningrequests"):
		a.create(w, r, by)
	case strings.Contains(r.URL.Path, "/certificatesigningrequests/"):
		answer(w, a.csrs[name])
	case strings.HasSuffix(r.URL.Path, "/networkinterfaces"):
		a.callers = append(a.callers, by)
		answer(w, map[string]any{"kind": "NetworkInterfaceList", "apiVersion": "core.apinet.ironcore.dev/v1alpha1", "items": []any{}})
	case strings.Contains(r.URL.Path, "/secrets"):
		a.secret(w, r)
	default:
		fail(w, http.StatusNotFound, "NotFound")
	}
}

func (a *authority) secret(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		answer(w, a.secrets[r.URL.Path])
		return
	}
	var body map[string]any
	_ = json.NewDecoder(r.Body).Decode(&body)
	path := r.URL.Path
	if r.Method == http.MethodPost {
		path += "/" + body["metadata"].(map[string]any)["name"].(string)
	}
	a.secrets[path] = body
	answer(w, body)
}

func (a *authority) create(w http.ResponseWriter, r *http.Request, by string) {
	var body struct {
		Spec struct {
			Request    []byte
			Usages     []string
			SignerName string
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	block, _ := pem.Decode(body.Spec.Request)
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	a.requests = append(a.requests, seen{by: by, subject: csr.Subject.String(), usages: body.Spec.Usages, signer: body.Spec.SignerName})
	name := fmt.Sprintf("csr-%d", len(a.requests))
	object := map[string]any{
		"kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1", "metadata": map[string]any{"name": name},
	}
	switch {
	case a.deny:
		object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Denied", "reason": "Policy", "message": "not this node"}}}
	case !a.silent:
		object["status"] = map[string]any{"certificate": base64.StdEncoding.EncodeToString(a.sign(csr))}
	}
	a.csrs[name] = object
	answer(w, object)
}

func (a *authority) sign(csr *x509.CertificateRequest) []byte {
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: csr.Subject, NotBefore: now, NotAfter: now.Add(a.life),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.ca, csr.PublicKey, a.caKey)
	if err != nil {
		a.t.Error(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func answer(w http.ResponseWriter, object map[string]any) {
	if object == nil {
		fail(w, http.StatusNotFound, "NotFound")
		return
	}
	_ = json.NewEncoder(w).Encode(object)
}

func fail(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason, "code": code,
	})
}
