// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestOddAndHostileImagesAreRefused(t *testing.T) {
	ok := layer{ironcore + "rootfs", noise(1, 100)}
	reg := plainRegistry(t)
	config := reg.blob("os", ironcore+"config.v1+json", []byte("{}"))
	rootfs := reg.blob("os", ironcore+"rootfs", ok.data)
	raw := func(tag string, layers ...ocispec.Descriptor) {
		m := ocispec.Manifest{Config: config, Layers: layers}
		m.SchemaVersion = 2
		reg.manifest("os", tag, ocispec.MediaTypeImageManifest, m)
	}
	withSize := func(n int64) ocispec.Descriptor { d := rootfs; d.Size = n; return d }
	raw("negative", withSize(-1))
	raw("absurd", withSize(maxLayerSize+1))
	raw("none")
	raw("escape", ocispec.Descriptor{MediaType: ironcore + "rootfs", Digest: "sha256:../../../../etc/passwd", Size: 1})
	reg.push("os", "container", "{}", layer{"application/vnd.oci.image.layer.v1.tar+gzip", noise(2, 100)})
	reg.push("os", "twice", "{}", ok, layer{ironcore + "rootfs", noise(3, 100)})
	reg.push("os", "badconfig", "not json", ok)
	reg.manifest("os", "both", ocispec.MediaTypeImageManifest, map[string]any{
		"schemaVersion": 2, "manifests": []any{}, "layers": []any{}, "config": config,
	})
	reg.manifest("os", "big", ocispec.MediaTypeImageManifest, map[string]any{
		"schemaVersion": 2, "config": config, "filler": strings.Repeat("x", maxManifestSize),
	})
	inner := reg.pushIndex("os", "", onPlatform(rootfs, "linux", "amd64"))
	reg.pushIndex("os", "nested", onPlatform(inner, "linux", "amd64"))
	tests := []struct{ tag, want string }{
		{"negative", "size -1 is out of range"},
		{"absurd", "is out of range"},
		{"none", "no layers"},
		{"escape", "invalid"},
		{"container", "this is no ironcore image"},
		{"twice", "more than one rootfs"},
		{"badconfig", "config is not valid JSON"},
		{"both", "both an index and an image"},
		{"big", "out of range"},
		{"nested", "index points to another index"},
	}
	h := start(t, reg, t.TempDir(), nil)
	for _, tt := range tests {
		t.Run(tt.tag, func(t *testing.T) {
			failed := h.mustFail(reg.host() + "/os:" + tt.tag)
			if failed.Kind != Invalid || !failed.Permanent() || !strings.Contains(failed.Error(), tt.want) {
				t.Errorf("kind %v, %v; want Invalid and %q", failed.Kind, failed, tt.want)
			}
			if wait := failed.RetryAt.Sub(h.clock.Now()); wait < defaultRetryMax*4/5 || wait > defaultRetryMax {
				t.Errorf("retried after %v, want about %v", wait, defaultRetryMax)
			}
		})
	}
}

func TestMalformedReferencesAreNamed(t *testing.T) {
	sha := "sha256:" + strings.Repeat("a", 64)
	tests := []struct{ ref, want string }{
		{"ghcr.io/org/os:v1", ""},
		{"ghcr.io/org/os", ""},
		{"localhost:5000/os@" + sha, ""},
		{"[::1]:5000/os:v1@" + sha, ""},
		{"", "is empty"},
		{"ubuntu", "names no registry"},
		{"https://ghcr.io/os:v1", "must not start with a scheme"},
		{"user:secret@ghcr.io/os:v1", "must not hold user information"},
		{"ghcr.io/Org/os:v1", "invalid repository"},
		{"ghcr.io/../os:v1", "invalid repository"},
		{"ghcr.io/os:v 1", "spaces"},
		{"ghcr.io/os:", "empty tag"},
		{"ghcr.io/os:-v", "invalid tag"},
		{"ghcr.io/os@sha256:abc", "invalid digest"},
		{"ghcr.io/os:?@" + sha, "invalid tag"},
		{"ghcr.io/os@md5:" + strings.Repeat("a", 32), "invalid digest"},
		{"ghcr.io/" + strings.Repeat("a", 800), "at most 768"},
		{"ghcr.io/os:\xff", "non-ASCII"},
	}
	for _, tt := range tests {
		t.Run(tt.ref, func(t *testing.T) {
			err := ValidateReference(tt.ref)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("error %v, want none", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want one with %q", err, tt.want)
			case err != nil && strings.Contains(err.Error(), "secret"):
				t.Errorf("error shows the password: %v", err)
			}
		})
	}
	h := start(t, plainRegistry(t), t.TempDir(), nil)
	var failed *PullFailedError
	if _, err := h.Get(context.Background(), "ubuntu"); !errors.As(err, &failed) || failed.Kind != Invalid {
		t.Errorf("Get of a malformed reference = %v", err)
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "config.json")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]Options{
		"no directory":               {},
		"negative number of pulls":   {Dir: dir, MaxPulls: -1},
		"negative retry":             {Dir: dir, RetryMax: -1},
		"a URL as plain-HTTP host":   {Dir: dir, PlainHTTP: []string{"http://localhost:5000"}},
		"a docker config not there":  {Dir: dir, DockerConfig: filepath.Join(dir, "nothing")},
		"a docker config not parsed": {Dir: dir, DockerConfig: bad},
		"a file where the cache is":  {Dir: bad},
	} {
		t.Run(name, func(t *testing.T) {
			if c, err := New(o); err == nil {
				c.Close()
				t.Error("no error")
			}
		})
	}
}
