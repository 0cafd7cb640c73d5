// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest/debian"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const layerType = "application/vnd.test.layer"

func start(t *testing.T, o registry.Options) *registry.Server {
	t.Helper()
	s, err := registry.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func repository(t *testing.T, host string) *remote.Repository {
	t.Helper()
	repo, err := remote.NewRepository(host + "/team/image")
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	repo.Client = &auth.Client{Client: &http.Client{Transport: transport}, Cache: auth.NewCache()}
	return repo
}

// pushIndex pushes an index over one image with one layer, and tags it.
func pushIndex(t *testing.T, dst oras.Target, layer []byte) (index, layerDesc ocispec.Descriptor) {
	t.Helper()
	ctx := t.Context()
	layerDesc, err := oras.PushBytes(ctx, dst, layerType, layer)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := oras.PackManifest(ctx, dst, oras.PackManifestVersion1_1, "application/vnd.test", oras.PackManifestOptions{
		Layers: []ocispec.Descriptor{layerDesc},
	})
	if err != nil {
		t.Fatal(err)
	}
	raw := []byte(`{"schemaVersion":2,"mediaType":"` + ocispec.MediaTypeImageIndex + `","manifests":[{"mediaType":"` +
		manifest.MediaType + `","digest":"` + manifest.Digest.String() + `","size":` + strconv.FormatInt(manifest.Size, 10) + `}]}`)
	index, err = oras.TagBytes(ctx, dst, ocispec.MediaTypeImageIndex, raw, "v1")
	if err != nil {
		t.Fatal(err)
	}
	return index, layerDesc
}

func pull(ctx context.Context, src oras.ReadOnlyTarget) (ocispec.Descriptor, error) {
	return oras.Copy(ctx, src, "v1", memory.New(), "v1", oras.DefaultCopyOptions)
}

func TestWhatWasPushedIsThereAfterARestart(t *testing.T) {
	dir := t.TempDir()
	first, err := registry.Start(t.Context(), registry.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	want, _ := pushIndex(t, repository(t, first.Host()), []byte("layer"))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := start(t, registry.Options{Dir: dir})
	got, err := pull(t.Context(), repository(t, second.Host()))
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest != want.Digest {
		t.Errorf("pulled %s, pushed %s", got.Digest, want.Digest)
	}
}

func TestARangeRequestContinuesABlob(t *testing.T) {
	s := start(t, registry.Options{})
	repo := repository(t, s.Host())
	_, layer := pushIndex(t, repo, []byte("0123456789"))
	r, err := repo.Fetch(t.Context(), layer)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	seeker, ok := r.(io.Seeker)
	if !ok {
		t.Fatal("the registry offers no ranges")
	}
	if _, err := seeker.Seek(7, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(r)
	if err != nil || string(rest) != "789" {
		t.Errorf("rest of the blob: %q, %v", rest, err)
	}
}

func TestFaultsHitTheRequestTheyAreMeantFor(t *testing.T) {
	layer := bytes.Repeat([]byte("abcd"), 1000)
	for name, c := range map[string]struct {
		fault registry.Fault
		check func(t *testing.T, got []byte, err error)
	}{
		"a cut blob ends early": {
			registry.Fault{Cut: true, CutAfter: 1234},
			func(t *testing.T, got []byte, err error) {
				if len(got) != 1234 || !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("got %d bytes and %v", len(got), err)
				}
			},
		},
		"a cut before the body gives nothing": {
			registry.Fault{Cut: true},
			func(t *testing.T, got []byte, err error) {
				if len(got) != 0 || err == nil {
					t.Errorf("got %d bytes and %v", len(got), err)
				}
			},
		},
		"one byte is damaged": {
			registry.Fault{Corrupt: true, CorruptAt: 17},
			func(t *testing.T, got []byte, err error) {
				want := bytes.Clone(layer)
				want[17] ^= 0xff
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("got other bytes than one damaged, and %v", err)
				}
			},
		},
		"an error status is answered": {
			registry.Fault{Status: http.StatusServiceUnavailable},
			func(t *testing.T, _ []byte, err error) {
				if err == nil {
					t.Error("no error")
				}
			},
		},
		"a slow body takes its time": {
			registry.Fault{BytesPerSecond: 40_000, Delay: time.Millisecond},
			func(t *testing.T, got []byte, err error) {
				if err != nil || !bytes.Equal(got, layer) {
					t.Errorf("got %d bytes and %v", len(got), err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, registry.Options{})
			repo := repository(t, s.Host())
			_, desc := pushIndex(t, repo, layer)
			fetch := func() ([]byte, error) {
				r, err := repo.Fetch(t.Context(), desc)
				if err != nil {
					return nil, err
				}
				defer r.Close()
				return io.ReadAll(r)
			}
			c.fault.Skip = 1
			s.Inject(c.fault)
			if got, err := fetch(); err != nil || !bytes.Equal(got, layer) {
				t.Fatalf("the fetch before the fault: %d bytes, %v", len(got), err)
			}
			got, err := fetch()
			c.check(t, got, err)
			if got, err := fetch(); err != nil || !bytes.Equal(got, layer) {
				t.Errorf("the fetch after the fault: %d bytes, %v", len(got), err)
			}
			if n := s.Count(registry.KindBlob, http.MethodGet); n != 3 {
				t.Errorf("%d blob requests counted, want 3", n)
			}
		})
	}
}

func TestBasicAuthenticationIsDemanded(t *testing.T) {
	s := start(t, registry.Options{Username: "u", Password: "p"})
	repo := repository(t, s.Host())
	if _, err := pull(t.Context(), repo); err == nil {
		t.Error("pulled without credentials")
	}
	repo.Client.(*auth.Client).Credential = auth.StaticCredential(s.Host(), auth.Credential{Username: "u", Password: "p"})
	pushIndex(t, repo, []byte("layer"))
	if _, err := pull(t.Context(), repo); err != nil {
		t.Error(err)
	}
}

func TestOnlyLoopbackIsListenedOn(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "192.0.2.1:0", "localhost"} {
		if s, err := registry.Start(t.Context(), registry.Options{Address: address}); err == nil {
			s.Close()
			t.Errorf("listens on %s", address)
		}
	}
}

func TestABlobNameCannotLeaveTheDirectory(t *testing.T) {
	s := start(t, registry.Options{})
	for _, name := range []string{"sha256:..%2f..%2fmanifests", "sha256:" + digest.FromString("").Encoded()} {
		resp, err := http.Get("http://" + s.Host() + "/v2/a/blobs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode/100 != 4 {
			t.Errorf("%s: status %d", name, resp.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestDebiansRegistryKeepsAnImageOverARestart(t *testing.T) {
	storage := filepath.Join(t.TempDir(), "storage")
	startDebian := func() *registry.Debian {
		d, err := registry.StartDebian(t.Context(), registry.DebianOptions{StorageDir: storage})
		var missing *debian.MissingError
		if errors.As(err, &missing) {
			t.Skipf("SKIPPED: no docker-registry, an independent registry was NOT tested: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := startDebian()
	want, layer := pushIndex(t, repository(t, d.Host()), []byte("layer"))
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = startDebian()
	defer d.Close()
	repo := repository(t, d.Host())
	repo.Client.(*auth.Client).Client.Transport = retry.NewTransport(repo.Client.(*auth.Client).Client.Transport)
	got, err := pull(t.Context(), repo)
	if err != nil || got.Digest != want.Digest {
		t.Fatalf("pulled %s, %v; pushed %s", got.Digest, err, want.Digest)
	}
	raw, err := content.FetchAll(t.Context(), repo, layer)
	if err != nil || string(raw) != "layer" {
		t.Errorf("layer %q, %v", raw, err)
	}
}
