// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/registry"
)

func fakeFiles(t *testing.T, arch string) guest.Files {
	t.Helper()
	dir := t.TempDir()
	path := func(name string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(arch+" "+name), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	return guest.Files{
		Arch: arch, Kernel: path("vmlinuz"), VMLinux: path("vmlinux"), Initramfs: path("initramfs"), RootDisk: path("root"),
	}
}

// image is what a reader of the packed image finds.
type image struct {
	Platform   string
	ConfigType string
	Config     string
	Layers     map[string]string // media type -> content
}

func readImages(t *testing.T, src oras.ReadOnlyTarget, tag string) []image {
	t.Helper()
	ctx := t.Context()
	fetch := func(d ocispec.Descriptor) []byte {
		raw, err := content.FetchAll(ctx, src, d)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	desc, err := src.Resolve(ctx, tag)
	if err != nil {
		t.Fatal(err)
	}
	if desc.MediaType != ocispec.MediaTypeImageIndex {
		t.Fatalf("%s is %s, want an index", tag, desc.MediaType)
	}
	var index ocispec.Index
	if err := json.Unmarshal(fetch(desc), &index); err != nil {
		t.Fatal(err)
	}
	var images []image
	for _, m := range index.Manifests {
		var manifest ocispec.Manifest
		if err := json.Unmarshal(fetch(m), &manifest); err != nil {
			t.Fatal(err)
		}
		img := image{
			Platform: m.Platform.OS + "/" + m.Platform.Architecture, ConfigType: manifest.Config.MediaType,
			Config: string(fetch(manifest.Config)), Layers: map[string]string{},
		}
		for _, layer := range manifest.Layers {
			img.Layers[layer.MediaType] = string(fetch(layer))
		}
		images = append(images, img)
	}
	return images
}

func TestPackedImageHasTheIronCoreForm(t *testing.T) {
	const amd64Line, arm64Line = `{"commandLine":"console=ttyS0 quiet panic=-1 tsc=reliable"}`, `{"commandLine":"console=ttyAMA0 quiet panic=-1"}`
	for name, c := range map[string]struct {
		options guest.PackOptions
		want    []image
	}{
		"with the current media types": {guest.PackOptions{}, []image{{
			"linux/amd64", guest.MediaTypeConfig, amd64Line, map[string]string{
				guest.MediaTypeRootFS: "amd64 root", guest.MediaTypeInitramfs: "amd64 initramfs", guest.MediaTypeKernel: "amd64 vmlinuz",
			},
		}}},
		"with the legacy media types": {guest.PackOptions{Legacy: true, CommandLine: "quiet"}, []image{{
			"linux/amd64", guest.LegacyMediaTypeConfig, `{"commandLine":"quiet"}`, map[string]string{
				guest.LegacyMediaTypeRootFS: "amd64 root", guest.LegacyMediaTypeInitramfs: "amd64 initramfs",
				guest.LegacyMediaTypeKernel: "amd64 vmlinuz",
			},
		}}},
		"with the uncompressed kernel and no disk": {guest.PackOptions{UseVMLinux: true, OmitRootDisk: true}, []image{{
			"linux/amd64", guest.MediaTypeConfig, amd64Line, map[string]string{
				guest.MediaTypeInitramfs: "amd64 initramfs", guest.MediaTypeKernel: "amd64 vmlinux",
			},
		}}},
		"for two architectures, disks only": {guest.PackOptions{OmitKernel: true, More: []guest.Files{fakeFiles(t, "arm64")}}, []image{
			{"linux/amd64", guest.MediaTypeConfig, amd64Line, map[string]string{guest.MediaTypeRootFS: "amd64 root"}},
			{"linux/arm64", guest.MediaTypeConfig, arm64Line, map[string]string{guest.MediaTypeRootFS: "arm64 root"}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			store := memory.New()
			files := fakeFiles(t, "amd64")
			first, err := guest.Pack(t.Context(), files, store, c.options)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, readImages(t, store, guest.DefaultTag)); diff != "" {
				t.Error(diff)
			}
			again, err := guest.Pack(t.Context(), files, store, c.options)
			if err != nil || again.Digest != first.Digest {
				t.Errorf("packed again: %s, %v; want %s", again.Digest, err, first.Digest)
			}
		})
	}
}

func TestPackRefusesOneArchitectureTwice(t *testing.T) {
	files := fakeFiles(t, "amd64")
	_, err := guest.Pack(t.Context(), files, memory.New(), guest.PackOptions{More: []guest.Files{files}})
	if err == nil {
		t.Error("no error")
	}
}

func TestPushedImageIsReadBackFromARegistryThatAsksForAPassword(t *testing.T) {
	s, err := registry.Start(t.Context(), registry.Options{Username: "u", Password: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	files := fakeFiles(t, "amd64")
	ref := s.Host() + "/demo/guest:v7"
	if _, err := guest.Push(t.Context(), files, ref, guest.PushOptions{PlainHTTP: true}); err == nil {
		t.Error("pushed without a password")
	}
	want, err := guest.Push(t.Context(), files, ref, guest.PushOptions{PlainHTTP: true, Username: "u", Password: "p"})
	if err != nil {
		t.Fatal(err)
	}
	open, err := registry.Start(context.Background(), registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := guest.Push(t.Context(), files, open.Host()+"/demo/guest", guest.PushOptions{PlainHTTP: true}); err != nil {
		t.Fatal(err)
	}
	repo, err := remote.NewRepository(open.Host() + "/demo/guest")
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	images := readImages(t, repo, guest.DefaultTag)
	if len(images) != 1 || images[0].Layers[guest.MediaTypeRootFS] != "amd64 root" {
		t.Errorf("read back %+v", images)
	}
	got, err := repo.Resolve(t.Context(), guest.DefaultTag)
	if err != nil || got.Digest != want.Digest {
		t.Errorf("resolved %s, %v; want %s", got.Digest, err, want.Digest)
	}
	for _, bad := range []string{"", "no-host", s.Host() + "/demo/guest@" + want.Digest.String()} {
		if _, err := guest.Push(t.Context(), files, bad, guest.PushOptions{PlainHTTP: true}); err == nil {
			t.Errorf("pushed to %q", bad)
		}
	}
}
