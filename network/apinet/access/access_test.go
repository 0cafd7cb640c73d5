// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

const (
	commonName = "networking.ironcore.dev:system:networkplugin:node-1"
	subject    = "CN=" + commonName + ",O=networking.ironcore.dev:system:networkplugins"
)

func connect(t *testing.T, o Options) dynamic.Interface {
	t.Helper()
	o.Node, o.RetryInterval = "node-1", 50*time.Millisecond
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	client, err := a.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Err(); err != nil {
		t.Fatalf("connected, yet: %v", err)
	}
	return client
}

func list(t *testing.T, client dynamic.Interface) error {
	t.Helper()
	_, err := client.Resource(schema.GroupVersionResource{
		Group: "core.apinet.ironcore.dev", Version: "v1alpha1", Resource: "networkinterfaces",
	}).List(t.Context(), metav1.ListOptions{})
	return err
}

func TestABootstrapTokenBecomesACertificateThatIsKept(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	o := Options{Kubeconfig: filepath.Join(dir, "sub", "kubeconfig"), Bootstrap: a.bootstrap(dir)}
	if err := list(t, connect(t, o)); err != nil {
		t.Fatal(err)
	}
	want := []seen{{by: "token", subject: subject, usages: []string{"digital signature", "client auth"}, signer: "kubernetes.io/kube-apiserver-client"}}
	if diff := cmp.Diff(want, a.asked(), cmp.AllowUnexported(seen{})); diff != "" {
		t.Errorf("asked for: %s", diff)
	}
	if a.callers[0] != commonName {
		t.Errorf("the API is called as %s", a.callers[0])
	}
	info, err := os.Stat(o.Kubeconfig)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kept as %v, %v", info, err)
	}

	// After a restart without the bootstrap file the certificate is enough.
	if err := os.Remove(o.Bootstrap); err != nil {
		t.Fatal(err)
	}
	if err := list(t, connect(t, o)); err != nil || len(a.asked()) != 1 {
		t.Errorf("%v, %d requests", err, len(a.asked()))
	}
	// What is kept is a kubeconfig like any other.
	if err := list(t, connect(t, Options{Kubeconfig: o.Kubeconfig})); err != nil {
		t.Error(err)
	}
}

func TestACertificateIsRenewedWithoutARestart(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	a.life = 3 * time.Second
	client := connect(t, Options{Kubeconfig: filepath.Join(dir, "kubeconfig"), Bootstrap: a.bootstrap(dir), Rotate: true})
	for end := time.Now().Add(7 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err := list(t, client); err != nil {
			t.Fatalf("after %d requests: %v", len(a.asked()), err)
		}
	}
	asked := a.asked()
	if len(asked) < 3 {
		t.Fatalf("%d requests in two lives", len(asked))
	}
	for _, r := range asked[1:] {
		if r.by != commonName {
			t.Errorf("renewed as %s", r.by)
		}
	}
}

func TestAnExpiredCertificateIsReplacedByBootstrap(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	o := Options{Kubeconfig: filepath.Join(dir, "kubeconfig"), Bootstrap: a.bootstrap(dir)}
	a.life = time.Second
	connect(t, o)
	time.Sleep(1100 * time.Millisecond)
	a.set(func(a *authority) { a.life = time.Hour })
	if err := list(t, connect(t, o)); err != nil || len(a.asked()) != 2 || a.asked()[1].by != "token" {
		t.Errorf("%v; requests %v", err, a.asked())
	}
}

// refusal runs Connect until it has failed, and returns why.
func refusal(t *testing.T, o Options) string {
	t.Helper()
	o.Node, o.RetryInterval = "node-1", time.Hour
	o.RequestTimeout = 700 * time.Millisecond
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); _, _ = a.Connect(ctx) }()
	deadline := time.Now().Add(20 * time.Second)
	for a.Err().Error() == "not connected yet" && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	text := a.Err().Error()
	cancel()
	<-done
	return text
}

func TestWhatIsMissingIsSaidPlainly(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	bootstrap := a.bootstrap(dir)
	expired := filepath.Join(dir, "expired")
	a.life = time.Second
	connect(t, Options{Kubeconfig: expired, Bootstrap: bootstrap})
	time.Sleep(1100 * time.Millisecond)
	other := newAuthority(t)
	for name, tc := range map[string]struct {
		prepare func()
		o       Options
		want    []string
	}{
		"expired, and nothing to bootstrap with": {o: Options{Kubeconfig: expired, Rotate: true}, want: []string{expired, "expired on", "--apinet-bootstrap-kubeconfig"}},
		"expired, and the bootstrap file gone":   {o: Options{Kubeconfig: expired, Bootstrap: dir + "/none"}, want: []string{"expired on", dir + "/none"}},
		"no kubeconfig where one should be":      {o: Options{Kubeconfig: dir + "/none"}, want: []string{dir + "/none", "no such file"}},
		"a kubeconfig of another kind":           {o: Options{Kubeconfig: bootstrap, Rotate: true}, want: []string{"holds no client certificate"}},
		"denied": {
			prepare: func() { other.set(func(a *authority) { a.deny = true }) },
			o:       Options{Kubeconfig: dir + "/x", Bootstrap: other.bootstrap(t.TempDir())}, want: []string{"Denied", "not this node"},
		},
	} {
		if tc.prepare != nil {
			tc.prepare()
		}
		got := refusal(t, tc.o)
		for _, part := range tc.want {
			if !strings.Contains(got, part) {
				t.Errorf("%s: %q does not say %q", name, got, part)
			}
		}
		if strings.Contains(got, token) {
			t.Errorf("%s: the token is told: %q", name, got)
		}
	}
	other.set(func(a *authority) { a.deny, a.silent = false, true })
	if got := refusal(t, Options{Kubeconfig: dir + "/y", Bootstrap: other.bootstrap(t.TempDir())}); !strings.Contains(got, "neither approved and signed nor denied within 700ms") {
		t.Errorf("nobody signs: %q", got)
	}
}

func TestAccessComesOnceWhatIsMissingIsThere(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	go func() {
		time.Sleep(200 * time.Millisecond)
		raw, err := os.ReadFile(a.bootstrap(t.TempDir()))
		if err == nil {
			err = os.WriteFile(path, raw, 0o600)
		}
		if err != nil {
			t.Error(err)
		}
	}()
	if err := list(t, connect(t, Options{Kubeconfig: path})); err != nil {
		t.Error(err)
	}
}

func TestASecretKeepsTheKubeconfigAsAFileDoes(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	bootstrap := a.bootstrap(dir)
	t.Setenv("KUBECONFIG", bootstrap)
	t.Setenv("POD_NAMESPACE", "net")
	o := Options{SecretName: "apinet", Bootstrap: bootstrap}
	for range 2 {
		if err := list(t, connect(t, o)); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.asked()) != 1 || len(a.secrets) != 1 || a.secrets["/api/v1/namespaces/net/secrets/apinet"] == nil {
		t.Errorf("%d requests, secrets %v", len(a.asked()), a.secrets)
	}
}

func TestKeysAreNeitherLoggedNorReadable(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	var log bytes.Buffer
	path := filepath.Join(dir, "kubeconfig")
	connect(t, Options{Kubeconfig: path, Bootstrap: a.bootstrap(dir), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if text := log.String(); strings.Contains(text, token) || strings.Contains(text, "PRIVATE") || !strings.Contains(text, "issued") {
		t.Errorf("log: %s", text)
	}
}

func TestContradictingOptionsAreRefused(t *testing.T) {
	for name, o := range map[string]Options{
		"no node":                   {Kubeconfig: "k"},
		"file and Secret":           {Node: "n", Kubeconfig: "k", SecretName: "s"},
		"a namespace of no Secret":  {Node: "n", SecretNamespace: "s"},
		"bootstrap without a place": {Node: "n", Bootstrap: "b"},
		"rotation without a place":  {Node: "n", Rotate: true},
		"a missing egress file":     {Node: "n", EgressSelectorConfig: "/none"},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestRenewalIsAtSeventyToNinetyPercent(t *testing.T) {
	from := time.Unix(0, 0)
	for chance, want := range map[float64]time.Duration{0: 84 * time.Second, 1: 108 * time.Second} {
		if got := renewalAt(from, from.Add(120*time.Second), chance).Sub(from); got.Round(time.Millisecond) != want {
			t.Errorf("chance %v: %s", chance, got)
		}
	}
}

func TestTheAPIServerIsReachedThroughAnEgressProxy(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	var through atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		through.Add(1)
		up, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", r.Host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusOK)
		down, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		go func() { _, _ = io.Copy(up, down); _ = up.Close() }()
		go func() { _, _ = io.Copy(down, up); _ = down.Close() }()
	}))
	defer proxy.Close()
	egress := filepath.Join(dir, "egress.yaml")
	write := func(protocol, url string) {
		text := fmt.Sprintf("apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- name: cluster\n"+
			"  connection:\n    proxyProtocol: %s\n    transport: {tcp: {url: %q}}\n", protocol, url)
		if err := os.WriteFile(egress, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("HTTPConnect", proxy.URL)
	if err := list(t, connect(t, Options{Kubeconfig: filepath.Join(dir, "k"), Bootstrap: a.bootstrap(dir), EgressSelectorConfig: egress})); err != nil || through.Load() == 0 {
		t.Errorf("%v, %d connections through the proxy", err, through.Load())
	}
	write("GRPC", proxy.URL)
	if _, err := New(Options{Node: "n", EgressSelectorConfig: egress}); err == nil || !strings.Contains(err.Error(), `"GRPC" is not supported`) {
		t.Errorf("GRPC: %v", err)
	}
}
