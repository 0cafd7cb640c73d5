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
	"syscall"

	"github.com/opencontainers/go-digest"
)

// provenLocked reports whether the files of an image are the very ones whose bytes were proven, untouched since.
func (c *Cache) provenLocked(img *Image) bool {
	for _, slot := range img.slots() {
		b := *slot
		if b == nil {
			continue
		}
		have, ok := c.proven[b.Digest]
		info, err := os.Lstat(b.Path)
		if !ok || err != nil {
			return false
		}
		now := fingerprintOf(info)
		if !have.holds(now) {
			return false
		}
		c.proven[b.Digest] = now
	}
	return true
}

// markProven notes that the bytes of f, which is the blob's file now, were proven while it was written.
func (c *Cache) markProven(d digest.Digest, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("look at blob %s: %w", d, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proven[d] = fingerprintOf(info)
	return nil
}

// prove reads a blob and proves its digest, unless this very file was proven before and again is false. A blob that is
// not what its name says, or cannot be read for a fault of the disk, is removed: the error is then of kind Corrupt. The
// caller holds the blob's lock.
func (c *Cache) prove(ctx context.Context, d digest.Digest, again bool, progress func(int64)) error {
	f, err := os.Open(c.disk.blobPath(d))
	if errors.Is(err, fs.ErrNotExist) {
		return failf(NotFound, "verify blob %s: %w", d, err)
	}
	if err != nil {
		return fmt.Errorf("verify blob %s: %w", d, err)
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return fmt.Errorf("verify blob %s: %w", d, err)
	}
	c.mu.Lock()
	have, ok := c.proven[d]
	c.mu.Unlock()
	if ok && !again && have.holds(fingerprintOf(before)) {
		return nil
	}
	got, err := hashFile(ctx, f, d.Algorithm(), progress)
	switch {
	case errors.Is(err, syscall.EIO):
		return c.discard(d, failf(Corrupt, "verify blob %s: %w", d, err))
	case err != nil:
		return fmt.Errorf("verify blob %s: %w", d, err)
	case got != d:
		return c.discard(d, failf(Corrupt, "verify blob %s: file has digest %s", d, got))
	}
	after, err := f.Stat()
	if err != nil {
		return fmt.Errorf("verify blob %s: %w", d, err)
	}
	if !fingerprintOf(before).holds(fingerprintOf(after)) {
		return failf(Unavailable, "verify blob %s: the file changed while it was read", d)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proven[d] = fingerprintOf(after)
	return nil
}

// discard removes a blob that is not what its name says.
func (c *Cache) discard(d digest.Digest, cause error) error {
	c.opts.Logger.Error("removing corrupt blob from the image cache", "digest", d, "error", cause)
	c.mu.Lock()
	delete(c.proven, d)
	c.mu.Unlock()
	if err := os.Remove(c.disk.blobPath(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; it cannot be removed: %w", cause, err)
	}
	return cause
}

func hashFile(ctx context.Context, f *os.File, algorithm digest.Algorithm, progress func(int64)) (digest.Digest, error) {
	h := algorithm.Hash()
	var done int64
	reader := readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		n, err := f.Read(p)
		done += int64(n)
		progress(done)
		return n, err
	})
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, reader, make([]byte, chunkSize)); err != nil {
		return "", err
	}
	return digest.NewDigest(algorithm, h), nil
}

// Verify reads every byte of a cached image and proves all digests again; d is that of its manifest or index. A blob
// that fails is removed, so that the next Get pulls it anew, and the error (of kind Corrupt) names it. An image that
// is not complete is a NotFound error. It takes as long as reading the files does.
func (c *Cache) Verify(ctx context.Context, d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return failf(Invalid, "verify image: digest %q: %w", d, err)
	}
	holder := &entry{} // keeps the files as a pull would
	c.hold(holder, d)
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.releaseLocked(holder.held)
	}()
	img, err := c.disk.load(d, c.opts.Platform)
	if notCached(err) {
		return failf(NotFound, "verify image %s: %w", d, err)
	}
	if err != nil {
		return fmt.Errorf("verify image %s: %w", d, err)
	}
	digests := append([]digest.Digest{d}, img.digests()...)
	c.hold(holder, digests...)
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
	return c.prove(ctx, d, true, func(int64) {})
}
