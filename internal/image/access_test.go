// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

func TestCredentialsComeFromTheDockerConfig(t *testing.T) {
	reg := plainRegistry(t)
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", noise(1, 100)})
	reg.set(func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, _ := r.BasicAuth(); user == "robot" && password == "s3cret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}, nil)
	write := func(path, password, more string) {
		t.Helper()
		token := base64.StdEncoding.EncodeToString([]byte("robot:" + password))
		text := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}%s}`, reg.host(), token, more)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ref := reg.host() + "/os:v1"

	if f := start(t, reg, t.TempDir(), nil).mustFail(ref); f.Kind != Unauthenticated || !f.Permanent() {
		t.Errorf("without credentials: kind %v, %v", f.Kind, f)
	}
	config := filepath.Join(t.TempDir(), "config.json")
	write(config, "wrong", "")
	h := start(t, reg, t.TempDir(), func(o *Options) { o.DockerConfig = config })
	if f := h.mustFail(ref); f.Kind != Unauthenticated || strings.Contains(f.Error(), "wrong") {
		t.Errorf("wrong password: kind %v, %v", f.Kind, f)
	}
	// The password is corrected without a restart. A helper named in the file is not run for it.
	write(config, "s3cret", `,"credsStore":"does-not-exist"`)
	h.clock.advance(defaultRetryMax)
	h.mustPull(ref)

	h = start(t, reg, t.TempDir(), func(o *Options) { o.DockerConfig, o.CredentialHelpers = config, true })
	if f := h.mustFail(ref); !strings.Contains(f.Error(), "docker-credential-does-not-exist") {
		t.Errorf("allowed helper was not run: %v", f)
	}
}

func TestPlainHTTPNeedsToBeListed(t *testing.T) {
	reg := plainRegistry(t)
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", noise(1, 100)})
	h := start(t, reg, t.TempDir(), func(o *Options) { o.PlainHTTP = []string{"elsewhere:5000"} })
	f := h.mustFail(reg.host() + "/os:v1")
	if f.Kind != Invalid || !strings.Contains(f.Error(), "plain-HTTP registries") {
		t.Errorf("kind %v, %v", f.Kind, f)
	}
	if n := len(reg.asked("/")); n != 0 {
		t.Errorf("%d requests went out in plain text", n)
	}
}

func TestARedirectDoesNotLeaveTLS(t *testing.T) {
	reg := newTestRegistry(t, httptest.NewTLSServer)
	data := noise(1, 100)
	reg.push("os", "v1", "{}", layer{ironcore + "rootfs", data})
	withTLS := func(o *Options) { o.PlainHTTP, o.Transport = nil, reg.srv.Client().Transport }
	h := start(t, reg, t.TempDir(), withTLS)
	h.mustPull(reg.host() + "/os:v1")

	plain := plainRegistry(t)
	reg.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, digest.FromBytes(data).String()) {
			return false
		}
		http.Redirect(w, r, plain.srv.URL+"/storage?signature=s3cret", http.StatusTemporaryRedirect)
		return true
	}, nil)
	h = start(t, reg, t.TempDir(), withTLS)
	if f := h.mustFail(reg.host() + "/os:v1"); f.Kind != Invalid || !strings.Contains(f.Error(), "refuse http request") {
		t.Errorf("kind %v, %v", f.Kind, f)
	}
	if n := len(plain.asked("/")); n != 0 {
		t.Errorf("%d requests went out in plain text", n)
	}
}
