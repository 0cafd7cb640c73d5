// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"

	"github.com/opencontainers/go-digest"
)

// List returns every complete image for this platform, ordered by digest. It reads all manifests of the cache from
// disk.
func (c *Cache) List(ctx context.Context) ([]Image, error) {
	refs, err := c.refsByManifest()
	if err != nil {
		return nil, err
	}
	var images []Image
	for _, algorithm := range []digest.Algorithm{digest.SHA256, digest.SHA384, digest.SHA512} {
		entries, err := os.ReadDir(filepath.Join(c.opts.Dir, "blobs", algorithm.String()))
		if err != nil {
			return nil, fmt.Errorf("list image cache: %w", err)
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			d := digest.NewDigestFromEncoded(algorithm, e.Name())
			if d.Validate() != nil || !looksLikeJSON(c.disk.blobPath(d)) {
				continue
			}
			// What is no manifest, or an incomplete one, fails to load; an index loads as the manifest it selects.
			if img, err := c.disk.load(d, c.opts.Platform); err == nil && img.Digest == d {
				img.Ref = refs[d]
				images = append(images, *img)
			}
		}
	}
	sort.Slice(images, func(i, j int) bool { return images[i].Digest < images[j].Digest })
	return images, nil
}

// refsByManifest maps each manifest to the alphabetically first tag that means it.
func (c *Cache) refsByManifest() (map[digest.Digest]string, error) {
	tags, err := c.disk.tags()
	if err != nil {
		return nil, err
	}
	refs := map[digest.Digest]string{}
	for _, t := range tags {
		img, err := c.disk.load(t.Digest, c.opts.Platform)
		if err != nil {
			continue
		}
		if have, ok := refs[img.Digest]; !ok || t.Ref < have {
			refs[img.Digest] = t.Ref
		}
	}
	return refs, nil
}

// looksLikeJSON tells manifests from layers by their length and first byte.
func looksLikeJSON(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() > maxManifestSize {
		return false
	}
	var first [1]byte
	_, err = io.ReadFull(f, first[:])
	return err == nil && first[0] == '{'
}

// Verify reads every byte of a cached image and proves all digests again; d is that of its manifest or index. A blob
// that fails is removed, so that the next Get pulls it anew, and the error (of kind Corrupt) names it. An image that
// is not complete is a NotFound error. It takes as long as reading the files does.
func (c *Cache) Verify(ctx context.Context, d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return failf(Invalid, "verify image: digest %q: %w", d, err)
	}
	img, err := c.disk.load(d, c.opts.Platform)
	if notCached(err) {
		return failf(NotFound, "verify image %s: %w", d, err)
	}
	if err != nil {
		return fmt.Errorf("verify image %s: %w", d, err)
	}
	digests := []digest.Digest{d, img.Digest, img.config.Digest}
	for _, slot := range img.slots() {
		if b := *slot; b != nil {
			digests = append(digests, b.Digest)
		}
	}
	var failures []error
	for _, dg := range digests {
		if err := c.verifyBlob(ctx, dg); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

func (c *Cache) verifyBlob(ctx context.Context, d digest.Digest) error {
	release, err := c.blobs.acquire(ctx, d)
	if err != nil {
		return err
	}
	defer release()
	path := c.disk.blobPath(d)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return failf(NotFound, "verify blob %s: %w", d, err)
	}
	if err != nil {
		return fmt.Errorf("verify blob %s: %w", d, err)
	}
	defer f.Close()
	h := d.Algorithm().Hash()
	reader := readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return f.Read(p)
	})
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, reader, make([]byte, chunkSize)); err != nil {
		return fmt.Errorf("verify blob %s: %w", d, err)
	}
	if got := digest.NewDigest(d.Algorithm(), h); got != d {
		c.opts.Logger.Error("removing corrupt blob from the image cache", "digest", d, "found", got)
		return errors.Join(failf(Corrupt, "verify blob %s: file has digest %s", d, got), os.Remove(path))
	}
	return nil
}
