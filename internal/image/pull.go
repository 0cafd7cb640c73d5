// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// progressInterval is the least time between two progress events of one pull.
	progressInterval = 500 * time.Millisecond
)

// EventKind says what happened to a pull.
type EventKind int

// The kinds of event.
const (
	PullStarted   EventKind = iota // begun, or waiting for its turn
	PullProgress                   // at most every 500 ms; Done and Total are set
	PullSucceeded                  // Image is set, Get answers with it from now on
	PullFailed                     // Err and RetryAt are set
)

var eventNames = [...]string{"PullStarted", "PullProgress", "PullSucceeded", "PullFailed"}

// String returns the name of the constant.
func (k EventKind) String() string {
	if k < 0 || int(k) >= len(eventNames) {
		return fmt.Sprintf("event kind %d", int(k))
	}
	return eventNames[k]
}

// Event tells about a pull. References that mean the same image are pulled once; each spelling that was asked for gets
// its own events.
type Event struct {
	Ref   string // as asked; for GetPinned without the digest
	Kind  EventKind
	Done  int64 // bytes present
	Total int64 // bytes of all blobs, 0 while unknown
	// Verifying says of a start and of progress that the bytes were in the cache and are proven again.
	Verifying bool
	Err       error // *PullFailedError
	RetryAt   time.Time
	Image     *Image
}

func (c *Cache) startLocked(e *entry, asked string, verifying bool) {
	e.waiting = []string{asked}
	e.done.Store(0)
	e.total.Store(0)
	e.verifying.Store(verifying)
	c.running++
	c.pulls.Add(1)
	go c.run(e)
}

// run is the life of one pull.
func (c *Cache) run(e *entry) {
	defer c.pulls.Done()
	log := c.opts.Logger.With("image", e.ref.String())
	began := c.opts.Clock.Now()
	c.emit(e, Event{Kind: PullStarted, Verifying: e.verifying.Load()})

	img, top, err := c.takeTurn(e)
	names, failure := c.conclude(e, top, err)
	switch {
	case stopped(c.ctx, err):
		log.Info("image pull stopped")
		return
	case err != nil:
		log.Warn("image pull failed", "kind", failure.Kind.String(), "error", err, "retryAt", failure.RetryAt)
	default:
		log.Info("image is here", "digest", img.Digest, "bytes", e.total.Load(), "took", c.opts.Clock.Now().Sub(began))
	}
	for _, name := range names {
		ev := Event{Ref: name, Kind: PullSucceeded, Done: e.done.Load(), Total: e.total.Load()}
		if failure != nil {
			f := *failure
			f.Ref = name
			ev.Kind, ev.Err, ev.RetryAt = PullFailed, &f, f.RetryAt
		} else {
			ev.Image = img.withRef(name)
		}
		c.opts.Observer(ev)
	}
	if failure == nil {
		select {
		case c.pulled <- struct{}{}:
		default: // Run has been told of another one already
		}
	}
}

// takeTurn pulls once fewer than MaxPulls others do.
func (c *Cache) takeTurn(e *entry) (*Image, digest.Digest, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-c.ctx.Done():
		return nil, "", c.ctx.Err()
	}
	return c.pull(c.ctx, e)
}

// conclude records how a pull ended and returns who waited for it.
func (c *Cache) conclude(e *entry, top digest.Digest, err error) (names []string, failure *PullFailedError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names, e.waiting = e.waiting, nil
	c.releaseLocked(e.held)
	e.held = nil
	e.owed.Store(0)
	if c.running--; c.running == 0 {
		c.client.closeIdle()
	}
	now := c.opts.Clock.Now()
	if err == nil {
		e.top, e.freshUntil, e.failure, e.failures = top, now.Add(tagFreshness), nil, 0
		return names, nil
	}
	e.failures++
	kind := KindOf(err)
	e.failure = &PullFailedError{
		Ref: e.ref.String(), Kind: kind, Err: err, RetryAt: now.Add(c.retryAfter(e.failures, kind)),
	}
	return names, e.failure
}

// emit tells everybody who waits for the pull.
func (c *Cache) emit(e *entry, ev Event) {
	c.mu.Lock()
	names := append([]string(nil), e.waiting...)
	c.mu.Unlock()
	for _, name := range names {
		ev.Ref = name
		c.opts.Observer(ev)
	}
}

// pull brings one image into the cache and returns it with the digest of its index or manifest.
func (c *Cache) pull(ctx context.Context, e *entry) (*Image, digest.Digest, error) {
	src := c.client.source(e.ref)
	top, data, err := c.resolve(ctx, e, src)
	resolved := err == nil
	if err != nil {
		if top, data, err = c.lastSeen(e, err); err != nil {
			return nil, "", err
		}
	}
	p, err := c.understand(ctx, e, src, data)
	if err != nil {
		return nil, "", err
	}
	if err := c.fetchAll(ctx, src, e, p.blobs()); err != nil {
		return nil, "", err
	}
	c.mu.Lock()
	img, err := c.cachedLocked(top)
	if err == nil {
		c.touchLocked(img.Digest, c.opts.Clock.Now())
	}
	c.mu.Unlock()
	if err != nil {
		return nil, "", fmt.Errorf("open pulled image: %w", err)
	}
	if e.ref.tag != "" && resolved {
		err := c.disk.saveTag(tagRecord{Ref: e.ref.String(), Digest: top, Resolved: c.opts.Clock.Now().UTC()})
		if err != nil {
			return nil, "", fmt.Errorf("remember tag: %w", err)
		}
	}
	return img, top, nil
}

// resolve returns the index or manifest that a reference means now. A digest that is in the cache needs no registry.
func (c *Cache) resolve(ctx context.Context, e *entry, src *source) (digest.Digest, []byte, error) {
	if d := src.ref.digest; d != "" {
		data, err := c.manifestOf(ctx, e, src, d)
		return d, data, err
	}
	data, d, err := src.manifest(ctx, src.ref.tag)
	if err != nil {
		return "", nil, err
	}
	c.hold(e, d)
	return d, data, c.disk.writeSmall(d, data)
}

// manifestOf returns a manifest or index by digest, from the cache if it is there.
func (c *Cache) manifestOf(ctx context.Context, e *entry, src *source, d digest.Digest) ([]byte, error) {
	c.hold(e, d)
	if data, err := c.disk.readSmall(d); err == nil {
		return data, nil
	}
	data, got, err := src.manifest(ctx, d.String())
	if err != nil {
		return nil, err
	}
	if got != d {
		return nil, failf(Corrupt, "registry answered manifest %s, asked for %s", got, d)
	}
	return data, c.disk.writeSmall(d, data)
}

// lastSeen answers with the image last seen under a tag when the registry cannot be asked, and with the cause when there
// is none. A registry that did answer, even with a refusal, is not second-guessed.
func (c *Cache) lastSeen(e *entry, cause error) (digest.Digest, []byte, error) {
	if e.ref.tag == "" || KindOf(cause) != Unavailable || c.ctx.Err() != nil {
		return "", nil, cause
	}
	rec, err := c.disk.loadTag(e.ref.String())
	if err != nil {
		return "", nil, cause
	}
	c.hold(e, rec.Digest)
	c.mu.Lock()
	img, err := c.cachedLocked(rec.Digest)
	if err == nil {
		c.holdLocked(e, img.digests()...)
	}
	c.mu.Unlock()
	if err != nil {
		return "", nil, cause
	}
	data, err := c.disk.readSmall(rec.Digest)
	if err != nil {
		return "", nil, cause
	}
	c.opts.Logger.Warn("registry cannot be reached, using the image last seen under the tag",
		"image", e.ref.String(), "digest", rec.Digest, "resolved", rec.Resolved, "error", cause)
	return rec.Digest, data, nil
}

// understand finds the manifest for this platform and what its layers are for.
func (c *Cache) understand(ctx context.Context, e *entry, src *source, data []byte) (*plan, error) {
	doc, err := parseDocument(data)
	if err != nil {
		return nil, err
	}
	if doc.isIndex() {
		desc, err := selectPlatform(doc.Manifests, c.opts.Platform)
		if err != nil {
			return nil, err
		}
		data, err := c.manifestOf(ctx, e, src, desc.Digest)
		if err != nil {
			return nil, err
		}
		if int64(len(data)) != desc.Size {
			return nil, failf(Invalid, "manifest has %d bytes, its index says %d", len(data), desc.Size)
		}
		if doc, err = parseDocument(data); err != nil {
			return nil, err
		}
		if doc.isIndex() {
			return nil, failf(Invalid, "index points to another index")
		}
	}
	return planOf(doc)
}

// fetchAll downloads what is missing of the blobs and proves the others, one after the other, and reports progress over
// all of them.
func (c *Cache) fetchAll(ctx context.Context, src *source, e *entry, blobs []ocispec.Descriptor) error {
	for _, b := range blobs {
		c.hold(e, b.Digest)
	}
	var total, missing int64
	for _, b := range blobs {
		total += b.Size
		missing += c.disk.missing(b)
	}
	if err := c.makeRoom(ctx, e, missing); err != nil {
		return err
	}
	e.total.Store(total)
	var base int64
	last := c.opts.Clock.Now()
	for _, b := range blobs {
		rest := c.disk.missing(b)
		missing -= rest
		after, have := missing, b.Size-rest
		progress := func(n int64) {
			e.done.Store(base + n)
			e.owed.Store(max(0, after+b.Size-max(n, have)))
			if now := c.opts.Clock.Now(); now.Sub(last) >= progressInterval {
				last = now
				c.emit(e, Event{Kind: PullProgress, Done: base + n, Total: total, Verifying: e.verifying.Load()})
			}
		}
		if err := c.ensureBlob(ctx, e, src, b, progress); err != nil {
			return err
		}
		base += b.Size
	}
	return nil
}

// notCached reports whether err only says that an image is incomplete.
func notCached(err error) bool { return errors.Is(err, errNotCached) }
