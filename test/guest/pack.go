// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// Media types of an ironcore-image (OCI-SPEC.md in the ironcore-image repository).
const (
	MediaTypeConfig    = "application/vnd.ironcore.image.config.v1+json"
	MediaTypeRootFS    = "application/vnd.ironcore.image.rootfs"
	MediaTypeInitramfs = "application/vnd.ironcore.image.initramfs"
	MediaTypeKernel    = "application/vnd.ironcore.image.kernel"

	LegacyMediaTypeConfig    = "application/vnd.ironcore.image.config.v1alpha1+json"
	LegacyMediaTypeRootFS    = "application/vnd.ironcore.image.rootfs.v1alpha1.rootfs"
	LegacyMediaTypeInitramfs = "application/vnd.ironcore.image.initramfs.v1alpha1.initramfs"
	LegacyMediaTypeKernel    = "application/vnd.ironcore.image.vmlinuz.v1alpha1.vmlinuz"
)

// DefaultTag names the packed index when PackOptions gives no tag.
const DefaultTag = "latest"

// PackOptions configures Pack and Push.
type PackOptions struct {
	// Tag names the index in the target; default DefaultTag. Push takes the tag from its reference instead.
	Tag string
	// CommandLine is the kernel command line in the image's config; default DefaultCommandLine of the architecture.
	CommandLine string
	// Legacy uses the v1alpha1 media types.
	Legacy bool
	// UseVMLinux packs the uncompressed kernel: larger, but boots faster under emulation.
	UseVMLinux bool
	// OmitKernel leaves kernel and initramfs out, as in an image that boots by firmware.
	OmitKernel bool
	// OmitRootDisk leaves the root disk out.
	OmitRootDisk bool
	// More are guests of other architectures for the same index.
	More []Files
}

// imageConfig is the config of an ironcore-image. commandLine is its only field.
type imageConfig struct {
	CommandLine string `json:"commandLine,omitempty"`
}

// Pack writes the guest into an OCI target as an index with one manifest per architecture, and returns the index.
// Layers are not compressed: the media types stand for the raw files. Content that the target has is not written again.
func Pack(ctx context.Context, files Files, dst oras.Target, o PackOptions) (ocispec.Descriptor, error) {
	if o.Tag == "" {
		o.Tag = DefaultTag
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	seen := map[string]bool{}
	for _, f := range append([]Files{files}, o.More...) {
		if seen[f.Arch] {
			return ocispec.Descriptor{}, fmt.Errorf("pack guest: architecture %s twice", f.Arch)
		}
		seen[f.Arch] = true
		manifest, err := packManifest(ctx, f, dst, o)
		if err != nil {
			return ocispec.Descriptor{}, fmt.Errorf("pack guest for %s: %w", f.Arch, err)
		}
		manifest.Platform = &ocispec.Platform{OS: "linux", Architecture: f.Arch}
		index.Manifests = append(index.Manifests, manifest)
	}
	desc, err := putJSON(ctx, dst, ocispec.MediaTypeImageIndex, index)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("pack guest: index: %w", err)
	}
	if err := dst.Tag(ctx, desc, o.Tag); err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("pack guest: tag %s: %w", o.Tag, err)
	}
	return desc, nil
}

func packManifest(ctx context.Context, f Files, dst oras.Target, o PackOptions) (ocispec.Descriptor, error) {
	commandLine := o.CommandLine
	if commandLine == "" {
		commandLine = DefaultCommandLine(f.Arch)
	}
	types := [4]string{MediaTypeConfig, MediaTypeRootFS, MediaTypeInitramfs, MediaTypeKernel}
	if o.Legacy {
		types = [4]string{LegacyMediaTypeConfig, LegacyMediaTypeRootFS, LegacyMediaTypeInitramfs, LegacyMediaTypeKernel}
	}
	kernel := f.Kernel
	if o.UseVMLinux {
		kernel = f.VMLinux
	}
	config, err := putJSON(ctx, dst, types[0], imageConfig{CommandLine: commandLine})
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("config: %w", err)
	}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config,
	}
	for _, layer := range []struct {
		mediaType, path string
		omit            bool
	}{
		{types[1], f.RootDisk, o.OmitRootDisk},
		{types[2], f.Initramfs, o.OmitKernel},
		{types[3], kernel, o.OmitKernel},
	} {
		if layer.omit {
			continue
		}
		desc, err := putFile(ctx, dst, layer.mediaType, layer.path)
		if err != nil {
			return ocispec.Descriptor{}, fmt.Errorf("layer %s: %w", layer.mediaType, err)
		}
		manifest.Layers = append(manifest.Layers, desc)
	}
	return putJSON(ctx, dst, ocispec.MediaTypeImageManifest, manifest)
}

func putJSON(ctx context.Context, dst oras.Target, mediaType string, v any) (ocispec.Descriptor, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(raw), Size: int64(len(raw))}
	return desc, put(ctx, dst, desc, bytes.NewReader(raw))
}

func putFile(ctx context.Context, dst oras.Target, mediaType, path string) (ocispec.Descriptor, error) {
	f, err := os.Open(path)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer f.Close()
	digester := digest.Canonical.Digester()
	size, err := io.Copy(digester.Hash(), f)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("digest %s: %w", path, err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digester.Digest(), Size: size}
	return desc, put(ctx, dst, desc, f)
}

func put(ctx context.Context, dst oras.Target, desc ocispec.Descriptor, r io.Reader) error {
	have, err := dst.Exists(ctx, desc)
	if err != nil || have {
		return err
	}
	return dst.Push(ctx, desc, r)
}

// PushOptions says how to talk to the registry.
type PushOptions struct {
	PackOptions
	// PlainHTTP allows a registry without TLS.
	PlainHTTP bool
	// Username and Password are for basic authentication; none when both are empty.
	Username, Password string
}

// Push packs the guest into a registry. ref is HOST[:PORT]/REPOSITORY[:TAG].
func Push(ctx context.Context, files Files, ref string, o PushOptions) (ocispec.Descriptor, error) {
	repo, err := remote.NewRepository(ref)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("push guest: %w", err)
	}
	if o.Tag = repo.Reference.Reference; o.Tag == "" {
		o.Tag = DefaultTag
	}
	if repo.Reference.ValidateReferenceAsDigest() == nil {
		return ocispec.Descriptor{}, errors.New("push guest: reference names a digest, want a tag")
	}
	repo.PlainHTTP = o.PlainHTTP
	client := &auth.Client{Client: auth.DefaultClient.Client, Cache: auth.NewCache()}
	if o.Username != "" || o.Password != "" {
		client.Credential = auth.StaticCredential(repo.Reference.Registry, auth.Credential{
			Username: o.Username, Password: o.Password,
		})
	}
	repo.Client = client
	return Pack(ctx, files, repo, o.PackOptions)
}
