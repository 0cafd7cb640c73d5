// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	chunkSize = 256 << 10
	// holeSize is the granularity at which zeros are left out of the file, in bytes: the block size of the usual
	// file systems.
	holeSize = 4 << 10
	// maxResumes is how often one pull picks up a broken connection that did deliver something, before it counts as
	// failed and backs off.
	maxResumes = 5
)

// keyedLock lets one holder at a time work on a digest, so that images sharing a blob download it once.
type keyedLock struct {
	mu    sync.Mutex
	locks map[digest.Digest]*lockSlot // guarded by mu
}

type lockSlot struct {
	token chan struct{}
	users int
}

func (k *keyedLock) acquire(ctx context.Context, d digest.Digest) (release func(), err error) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = map[digest.Digest]*lockSlot{}
	}
	slot := k.locks[d]
	if slot == nil {
		slot = &lockSlot{token: make(chan struct{}, 1)}
		k.locks[d] = slot
	}
	slot.users++
	k.mu.Unlock()

	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if slot.users--; slot.users == 0 {
			delete(k.locks, d)
		}
	}
	select {
	case slot.token <- struct{}{}:
		return func() { <-slot.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// ensureBlob makes sure that a blob is in the cache and its bytes are proven. progress hears how many of its bytes are
// there.
func (c *Cache) ensureBlob(ctx context.Context, e *entry, src *source, desc ocispec.Descriptor, progress func(int64)) error {
	release, err := c.blobs.acquire(ctx, desc.Digest)
	if err != nil {
		return err
	}
	defer release()
	if c.disk.has(desc.Digest, desc.Size) {
		e.verifying.Store(true)
		err := c.prove(ctx, desc.Digest, false, progress)
		e.verifying.Store(false)
		if err == nil {
			progress(desc.Size)
			return nil
		}
		if KindOf(err) != Corrupt {
			return err
		}
	}
	d, err := c.openDownload(ctx, desc, progress)
	if err != nil {
		return err
	}
	defer d.f.Close()
	if err := d.run(ctx, src); err != nil {
		return d.giveUp(err)
	}
	if err := d.finish(c.disk.blobPath(desc.Digest)); err != nil {
		return err
	}
	return c.markProven(desc.Digest, d.f)
}

// download is one partial file and the state of its hash.
type download struct {
	f        *os.File
	desc     ocispec.Descriptor
	hash     hash.Hash
	off      int64 // bytes hashed and written (or left out as zeros)
	progress func(int64)
}

// openDownload opens the partial file and hashes what an earlier attempt left in it.
func (c *Cache) openDownload(ctx context.Context, desc ocispec.Descriptor, progress func(int64)) (*download, error) {
	f, err := os.OpenFile(c.disk.partialPath(desc.Digest), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, fmt.Errorf("open partial download: %w", err)
	}
	d := &download{f: f, desc: desc, hash: desc.Digest.Algorithm().Hash(), progress: progress}
	if err := d.rehash(ctx); err != nil {
		f.Close()
		return nil, err
	}
	return d, nil
}

func (d *download) rehash(ctx context.Context) error {
	info, err := d.f.Stat()
	if err != nil {
		return fmt.Errorf("open partial download: %w", err)
	}
	if info.Size() > d.desc.Size {
		return d.restart()
	}
	buf := make([]byte, chunkSize)
	for d.off < info.Size() {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := d.f.ReadAt(buf[:min(chunkSize, info.Size()-d.off)], d.off)
		if n == 0 && err != nil {
			return fmt.Errorf("read partial download: %w", err)
		}
		d.hash.Write(buf[:n])
		d.off += int64(n)
	}
	d.progress(d.off)
	return nil
}

// restart forgets everything received.
func (d *download) restart() error {
	d.hash.Reset()
	d.off = 0
	d.progress(0)
	if err := d.f.Truncate(0); err != nil {
		return fmt.Errorf("reset partial download: %w", err)
	}
	return nil
}

// run receives what is missing, picking up broken connections as long as each of them delivers something.
func (d *download) run(ctx context.Context, src *source) error {
	for resumes := 0; d.off < d.desc.Size; resumes++ {
		before := d.off
		err := d.receive(ctx, src)
		if err == nil {
			continue
		}
		if KindOf(err) != Unavailable || ctx.Err() != nil || d.off <= before || resumes >= maxResumes {
			return err
		}
	}
	return nil
}

// receive makes one request and copies until the blob is complete or the connection breaks.
func (d *download) receive(ctx context.Context, src *source) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(src.client.stall, func() { cancel(errStalled) })
	defer watchdog.Stop()

	body, start, err := src.blob(ctx, d.desc, d.off)
	if err != nil {
		return causeOf(ctx, err)
	}
	defer body.Close()
	if start != d.off {
		if err := d.restart(); err != nil {
			return err
		}
	}
	alive := readerFunc(func(p []byte) (int, error) {
		n, err := body.Read(p)
		if n > 0 {
			watchdog.Reset(src.client.stall)
		}
		return n, err
	})
	buf := make([]byte, chunkSize)
	for d.off < d.desc.Size {
		n, err := io.ReadFull(alive, buf[:min(chunkSize, d.desc.Size-d.off)])
		if werr := d.write(buf[:n]); werr != nil {
			return werr
		}
		if err != nil {
			return fmt.Errorf("download blob %s: connection broke at byte %d of %d: %w",
				d.desc.Digest, d.off, d.desc.Size, causeOf(ctx, err))
		}
	}
	return nil
}

func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
		return cause
	}
	return err
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// write stores a chunk at the current offset. Blocks of zeros are left as holes: most of a disk image is zeros, and
// both the cache and every copy made from it save that space.
func (d *download) write(chunk []byte) error {
	d.hash.Write(chunk)
	for len(chunk) > 0 {
		n, zero := leadingRun(chunk, d.off)
		if !zero {
			if _, err := d.f.WriteAt(chunk[:n], d.off); err != nil {
				return fmt.Errorf("write blob %s: %w", d.desc.Digest, err)
			}
		}
		d.off += int64(n)
		chunk = chunk[n:]
	}
	d.progress(d.off)
	return nil
}

// leadingRun returns the length of the first run of blocks that are all zero or all not, where off is the position of the
// first byte in the file.
func leadingRun(chunk []byte, off int64) (n int, zero bool) {
	for n < len(chunk) {
		end := min(len(chunk), n+int(holeSize-(off+int64(n))%holeSize))
		z := allZero(chunk[n:end])
		if n > 0 && z != zero {
			break
		}
		n, zero = end, z
	}
	return n, zero
}

func allZero(p []byte) bool {
	var zeros [holeSize]byte
	return bytes.Equal(p, zeros[:len(p)])
}

// giveUp leaves the partial file in a state from which a later pull can go on, or removes it where it would do harm.
func (d *download) giveUp(err error) error {
	switch KindOf(err) {
	case Corrupt, Exhausted:
		// A full disk must be able to recover: what is kept for a resume would keep it full.
		_ = os.Remove(d.f.Name())
	default:
		// Trailing zeros were not written; the length is what the next attempt goes by.
		_ = d.f.Truncate(d.off)
	}
	return err
}

// finish proves the digest and moves the blob to its final name.
func (d *download) finish(path string) error {
	if got := digest.NewDigest(d.desc.Digest.Algorithm(), d.hash); got != d.desc.Digest {
		return d.giveUp(failf(Corrupt, "blob has digest %s, want %s", got, d.desc.Digest))
	}
	err := d.f.Truncate(d.desc.Size)
	if err == nil {
		err = d.f.Sync()
	}
	if err == nil {
		err = renameDurably(d.f.Name(), path)
	}
	if err != nil {
		return d.giveUp(fmt.Errorf("store blob %s: %w", d.desc.Digest, err))
	}
	return nil
}
