// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	_ "crypto/sha256" // go-digest accepts only algorithms that are linked in
	_ "crypto/sha512"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/registry"
)

// maxReferenceLength bounds a reference in bytes: 255 each for host and repository, 128 for the tag, a SHA-512 digest.
const maxReferenceLength = 768

// reference is a parsed image reference. Exactly one of tag and digest is set.
type reference struct {
	registry   string
	repository string
	tag        string
	digest     digest.Digest
}

// String returns the canonical spelling, under which pulls are coalesced and tags remembered.
func (r reference) String() string {
	if r.digest != "" {
		return r.registry + "/" + r.repository + "@" + r.digest.String()
	}
	return r.registry + "/" + r.repository + ":" + r.tag
}

// pinned returns the reference to one manifest of the same repository.
func (r reference) pinned(d digest.Digest) reference {
	return reference{registry: r.registry, repository: r.repository, digest: d}
}

// oras returns the reference as the registry client wants it.
func (r reference) oras() registry.Reference {
	ref := registry.Reference{Registry: r.registry, Repository: r.repository, Reference: r.tag}
	if r.digest != "" {
		ref.Reference = r.digest.String()
	}
	return ref
}

// ValidateReference reports what is wrong with the syntax of an image reference, nil if it is well-formed. The form is
// host[:port]/repository[:tag][@digest]; without tag and digest the tag is "latest", with both only the digest counts.
// No default registry is assumed. It asks nobody whether the image exists.
func ValidateReference(ref string) error {
	_, err := parseReference(ref)
	return err
}

func parseReference(ref string) (reference, error) {
	if err := checkSpelling(ref); err != nil {
		return reference{}, err
	}
	parsed, err := registry.ParseReference(ref)
	if err != nil {
		return reference{}, fmt.Errorf("image reference %q: %w", ref, err)
	}
	r := reference{registry: strings.ToLower(parsed.Registry), repository: parsed.Repository}
	if name, d, found := strings.Cut(ref, "@"); found {
		// The parser drops a tag that stands before a digest without looking at it.
		if _, err := registry.ParseReference(name); err != nil {
			return reference{}, fmt.Errorf("image reference %q: %w", ref, err)
		}
		r.digest = digest.Digest(d)
		return r, nil
	}
	r.tag = parsed.ReferenceOrDefault()
	return r, nil
}

// checkSpelling catches what the parser would accept or describe badly.
func checkSpelling(ref string) error {
	switch {
	case ref == "":
		return errors.New("image reference is empty")
	case len(ref) > maxReferenceLength:
		return fmt.Errorf("image reference has %d bytes, at most %d are allowed", len(ref), maxReferenceLength)
	case !utf8.ValidString(ref) || strings.ContainsFunc(ref, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("image reference %q holds spaces, control or non-ASCII characters", ref)
	case strings.Contains(ref, "://"):
		return fmt.Errorf("image reference must not start with a scheme: write host/repository:tag, not %q", schemeOf(ref))
	}
	host, _, found := strings.Cut(ref, "/")
	if !found {
		return fmt.Errorf("image reference %q names no registry: write host/repository:tag", ref)
	}
	if strings.Contains(host, "@") {
		return errors.New("image reference must not hold user information: credentials belong into the docker config file")
	}
	if strings.HasSuffix(ref, ":") || strings.HasSuffix(ref, "@") {
		return fmt.Errorf("image reference %q ends with an empty tag or digest", ref)
	}
	return nil
}

// schemeOf returns only the scheme, because what follows it may hold credentials.
func schemeOf(ref string) string {
	scheme, _, _ := strings.Cut(ref, "://")
	return scheme + "://..."
}
