// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"maps"
	"os"
	"time"

	"github.com/opencontainers/go-digest"
)

const (
	// leaseTime is how long a blob stays after it was handed out, whoever references it. It covers the moment between a
	// Get and the opening of the files, and between a Get and the record that references the image.
	leaseTime = 5 * time.Minute
	// resumeAge is how long an image of which a part is missing stays after the last part came.
	resumeAge = time.Hour
	// touchInterval is how old the noted last use of an image may be, so that using it is not a write each time.
	touchInterval = time.Hour
)

// hold keeps blobs, which need not exist yet, for as long as the pull runs. It must be called before looking for them.
func (c *Cache) hold(e *entry, ds ...digest.Digest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holdLocked(e, ds...)
}

func (c *Cache) holdLocked(e *entry, ds ...digest.Digest) {
	for _, d := range ds {
		c.holds[d]++
	}
	e.held = append(e.held, ds...)
}

// releaseLocked ends a hold; a lease follows, so that who waited for the pull can use what it brought.
func (c *Cache) releaseLocked(ds []digest.Digest) {
	for _, d := range ds {
		if c.holds[d]--; c.holds[d] <= 0 {
			delete(c.holds, d)
		}
	}
	c.leaseLocked(c.opts.Clock.Now(), ds...)
}

func (c *Cache) leaseLocked(now time.Time, ds ...digest.Digest) {
	for _, d := range ds {
		c.leases[d] = now.Add(leaseTime)
	}
}

// inUseLocked reports whether a blob must not be removed now, whoever references it. A lease that ends further ahead
// than any could is from before the clock was set back.
func (c *Cache) inUseLocked(d digest.Digest, now time.Time) bool {
	until := c.leases[d]
	return c.holds[d] > 0 || now.Before(until) && until.Sub(now) <= leaseTime
}

// forgetLeases drops what has run out.
func (c *Cache) forgetLeases(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.leases, func(d digest.Digest, _ time.Time) bool { return !c.inUseLocked(d, now) })
}

// touchLocked notes that an image is used, in the modification time of its manifest. A note that cannot be written is
// no reason not to use the image; it goes a little earlier then.
func (c *Cache) touchLocked(manifest digest.Digest, now time.Time) {
	if last, ok := c.touched[manifest]; ok && now.Sub(last) < touchInterval && !now.Before(last) {
		return
	}
	c.touched[manifest] = now
	if err := os.Chtimes(c.disk.blobPath(manifest), now, now); err != nil {
		c.opts.Logger.Debug("last use of an image not noted", "digest", manifest, "error", err)
	}
}
