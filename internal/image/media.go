// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// maxManifestSize bounds manifests, indexes and configs in bytes; the distribution specification asks registries to
	// accept manifests of at least this size, and some refuse larger ones.
	maxManifestSize = 4 << 20
	// maxLayerSize bounds one layer in bytes: 16 TiB is the largest file of ext4 with 4 KiB blocks.
	maxLayerSize = 16 << 40
)

// Manifest media types of Docker, which carry the same fields as those of OCI.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

func manifestMediaTypes() []string {
	return []string{ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex, dockerManifest, dockerList}
}

// role is what a layer is for.
type role int

const (
	roleRootFS role = iota
	roleKernel
	roleInitramfs
	roleSquashFS
	roleUKI
	roleISO
)

var roleNames = [...]string{"rootfs", "kernel", "initramfs", "squashfs", "uki", "iso"}

func (r role) String() string { return roleNames[r] }

// layerType is what a media type means. A current one wins over a legacy one of the same role, so that an image made
// for readers of both generations is read in its newer form.
type layerType struct {
	role   role
	legacy bool
}

// layerTypeOf maps the media types of ironcore-image (current, and v1alpha1), of its predecessor onmetal-image, and the
// name that the written specification uses for the root disk.
func layerTypeOf(mediaType string) (layerType, bool) {
	name, found := strings.CutPrefix(mediaType, "application/vnd.ironcore.image.")
	if !found {
		if name, found = strings.CutPrefix(mediaType, "application/vnd.onmetal.image."); !found {
			return layerType{}, false
		}
	}
	switch name {
	case "rootfs", "disk.img":
		return layerType{role: roleRootFS}, true
	case "kernel":
		return layerType{role: roleKernel}, true
	case "initramfs":
		return layerType{role: roleInitramfs}, true
	case "squashfs":
		return layerType{role: roleSquashFS}, true
	case "uki":
		return layerType{role: roleUKI}, true
	case "iso":
		return layerType{role: roleISO}, true
	case "rootfs.v1alpha1.rootfs":
		return layerType{role: roleRootFS, legacy: true}, true
	case "vmlinuz.v1alpha1.vmlinuz":
		return layerType{role: roleKernel, legacy: true}, true
	case "initramfs.v1alpha1.initramfs":
		return layerType{role: roleInitramfs, legacy: true}, true
	case "squashfs.v1alpha1.squashfs":
		return layerType{role: roleSquashFS, legacy: true}, true
	}
	return layerType{}, false
}

// document is the union of manifest and index, to tell which of them some bytes are.
type document struct {
	SchemaVersion int                  `json:"schemaVersion"`
	Config        *ocispec.Descriptor  `json:"config"`
	Layers        []ocispec.Descriptor `json:"layers"`
	Manifests     []ocispec.Descriptor `json:"manifests"`
}

// parseDocument decodes a manifest or an index. One that is both is refused: two readers could understand it
// differently although its digest is the same.
func parseDocument(data []byte) (*document, error) {
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, failf(Invalid, "manifest is not valid JSON: %w", err)
	}
	switch {
	case doc.SchemaVersion != 2:
		return nil, failf(Invalid, "manifest has schema version %d, only 2 is supported", doc.SchemaVersion)
	case doc.Manifests != nil && (doc.Layers != nil || doc.Config != nil):
		return nil, failf(Invalid, "manifest is both an index and an image")
	case doc.Manifests == nil && doc.Config == nil:
		return nil, failf(Invalid, "manifest has neither a config nor a list of manifests")
	}
	return &doc, nil
}

func (d *document) isIndex() bool { return d.Manifests != nil }

// plan is a manifest understood: which blob plays which role.
type plan struct {
	config ocispec.Descriptor
	layers map[role]ocispec.Descriptor
}

// blobs returns each blob of the plan once, smallest first, so that what is wrong with a small one shows early.
func (p *plan) blobs() []ocispec.Descriptor {
	seen := map[digest.Digest]bool{}
	var all []ocispec.Descriptor
	add := func(d ocispec.Descriptor) {
		if !seen[d.Digest] {
			seen[d.Digest] = true
			all = append(all, d)
		}
	}
	add(p.config)
	for r := roleRootFS; r <= roleISO; r++ {
		if d, ok := p.layers[r]; ok {
			add(d)
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].Size < all[j].Size })
	return all
}

// planOf checks a manifest and gives its layers their roles.
func planOf(doc *document) (*plan, error) {
	p := &plan{config: *doc.Config, layers: map[role]ocispec.Descriptor{}}
	if err := checkDescriptor(p.config, maxManifestSize); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	legacy := map[role]bool{}
	for i, layer := range doc.Layers {
		t, known := layerTypeOf(layer.MediaType)
		if !known {
			return nil, failf(Invalid, "layer %d has unknown media type %q: this is no ironcore image", i, layer.MediaType)
		}
		if err := checkDescriptor(layer, maxLayerSize); err != nil {
			return nil, fmt.Errorf("layer %d (%s): %w", i, t.role, err)
		}
		_, taken := p.layers[t.role]
		switch {
		case !taken || legacy[t.role] && !t.legacy:
			p.layers[t.role], legacy[t.role] = layer, t.legacy
		case legacy[t.role] == t.legacy:
			return nil, failf(Invalid, "manifest has more than one %s layer", t.role)
		}
	}
	if len(p.layers) == 0 {
		return nil, failf(Invalid, "manifest has no layers")
	}
	return p, nil
}

// checkDescriptor refuses what could name a file outside the cache or ask for absurd space.
func checkDescriptor(d ocispec.Descriptor, limit int64) error {
	if err := d.Digest.Validate(); err != nil {
		return failf(Invalid, "digest %q: %w", d.Digest, err)
	}
	if d.Size < 0 || d.Size > limit {
		return failf(Invalid, "size %d is out of range (0 to %d)", d.Size, limit)
	}
	return nil
}

// imageConfig is the part of the config blob that matters here. OS and architecture are no fields of ironcore-image,
// but builders that start from a container image leave them in.
type imageConfig struct {
	CommandLine  string `json:"commandLine"`
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
}

func parseConfig(data []byte, want ocispec.Platform) (imageConfig, error) {
	var c imageConfig
	if len(data) == 0 {
		return c, nil
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, failf(Invalid, "image config is not valid JSON: %w", err)
	}
	if c.Architecture != "" && normalArch(c.Architecture) != normalArch(want.Architecture) ||
		c.OS != "" && c.OS != want.OS {
		return c, failf(Invalid, "image is for %s/%s, this host needs %s", c.OS, c.Architecture, platformName(want))
	}
	return c, nil
}

// selectPlatform picks the manifest of an index that fits. An index may list a "metal" and a "virtualization" variant
// of one platform, told apart by an annotation; the metal one is used only if it is alone.
func selectPlatform(manifests []ocispec.Descriptor, want ocispec.Platform) (ocispec.Descriptor, error) {
	var fit *ocispec.Descriptor
	for i := range manifests {
		m := &manifests[i]
		if m.Platform == nil || !platformFits(*m.Platform, want) {
			continue
		}
		if fit == nil || fit.Annotations["variant"] == "metal" && m.Annotations["variant"] != "metal" {
			fit = m
		}
	}
	if fit == nil && len(manifests) == 1 && manifests[0].Platform == nil {
		fit = &manifests[0]
	}
	if fit == nil {
		return ocispec.Descriptor{}, failf(Invalid, "image has no manifest for %s; it has: %s",
			platformName(want), strings.Join(platformsOf(manifests), ", "))
	}
	if err := checkDescriptor(*fit, maxManifestSize); err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("manifest for %s: %w", platformName(want), err)
	}
	return *fit, nil
}

func platformFits(have, want ocispec.Platform) bool {
	return have.OS == want.OS && normalArch(have.Architecture) == normalArch(want.Architecture) &&
		(want.Variant == "" || have.Variant == "" || have.Variant == want.Variant)
}

func platformsOf(manifests []ocispec.Descriptor) []string {
	if len(manifests) == 0 {
		return []string{"nothing"}
	}
	names := make([]string, len(manifests))
	for i, m := range manifests {
		names[i] = "a manifest without platform"
		if m.Platform != nil {
			names[i] = platformName(*m.Platform)
		}
	}
	return names
}

func platformName(p ocispec.Platform) string {
	name := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		name += "/" + p.Variant
	}
	return name
}

// normalArch maps kernel names of architectures to those of OCI, since image builders use both.
func normalArch(arch string) string {
	switch arch {
	case "x86_64", "x86-64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return arch
}
