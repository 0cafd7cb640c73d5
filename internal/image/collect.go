// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
)

const (
	defaultSweep = time.Minute
	// leftoverInterval is how often leftovers are looked for.
	leftoverInterval = time.Hour
	// collectTime bounds one removal run. It must be far below leaseTime: what a run saw is then never older than a lease.
	collectTime = time.Minute
)

// Removed is an image that was removed, or would be.
type Removed struct {
	Digest   digest.Digest `json:"digest"` // of the manifest
	Tags     []string      `json:"tags,omitempty"`
	Bytes    int64         `json:"bytes"` // that came free; blobs shared with other images stay with those
	LastUsed time.Time     `json:"lastUsed"`
}

// errNobodyKnows is why a cache without Options.References removes nothing.
var errNobodyKnows = errors.New("nobody tells which images are referenced")

// Run keeps the cache within its limits and clears leftovers, until ctx ends. It looks at once, after each pull, and at
// intervals.
func (c *Cache) Run(ctx context.Context) error {
	ticker := time.NewTicker(c.opts.SweepInterval)
	defer ticker.Stop()
	var cleared time.Time
	told := ""
	for {
		var err error
		if time.Since(cleared) >= leftoverInterval {
			cleared = time.Now()
			err = c.ClearLeftovers(ctx)
		}
		err = errors.Join(err, c.Sweep(ctx))
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			told = ""
		case err.Error() != told: // once, not each minute
			told = err.Error()
			c.opts.Logger.Warn("image cache not swept, nothing is removed", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-c.pulled:
		}
	}
}

// Sweep removes unreferenced images if the cache is over its budget or the disk is short of its reserve.
func (c *Cache) Sweep(ctx context.Context) error {
	c.forgetLeases(c.opts.Clock.Now())
	u, err := c.usage()
	if err != nil {
		return err
	}
	over := u.excess(0)
	if over == 0 {
		c.counts.excess.Store(0)
		return nil
	}
	why := "the disk is short of its reserve"
	if u.overBudget(0) > 0 {
		why = "the cache is over its budget"
	}
	_, err = c.sweep(ctx, why, func(inv *inventory) []*unit {
		victims, freed := choose(inv.units, inv.allocated, over)
		if rest := over - freed; c.counts.excess.Swap(max(0, rest)) == 0 && rest > 0 {
			c.opts.Logger.Warn(why+" and what is left of the images is in use", "excess", HumanBytes(rest),
				"cache", HumanBytes(u.cache), "budget", HumanBytes(u.budget), "free", HumanBytes(u.free), "reserve", HumanBytes(u.reserve))
		}
		return victims
	})
	return err
}

// free removes unreferenced images for need bytes, or none if all of them are not enough.
func (c *Cache) free(ctx context.Context, need int64, why string) ([]Removed, error) {
	return c.sweep(ctx, why, func(inv *inventory) []*unit {
		victims, freed := choose(inv.units, inv.allocated, need)
		if freed < need {
			return nil
		}
		return victims
	})
}

// ClearLeftovers removes what killed pulls left: partial downloads and temporary files, images of which a part is
// missing and that nobody references, and blobs of no image. All of it is a day old at least.
func (c *Cache) ClearLeftovers(ctx context.Context) error {
	removed, err := c.disk.cleanUp(c.opts.Clock.Now(), func(d digest.Digest) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.holds[d] > 0
	})
	if len(removed) > 0 {
		c.opts.Logger.Info("removed stale partial downloads", "files", len(removed))
	}
	if err != nil || c.opts.References == nil {
		return err
	}
	_, err = c.sweep(ctx, "a part of it is missing", func(inv *inventory) []*unit {
		now := c.opts.Clock.Now()
		c.removeOrphans(inv, now)
		return slices.DeleteFunc(slices.Clone(inv.units), func(u *unit) bool {
			return u.complete || !u.removable() || now.Sub(u.lastUsed) < staleAge
		})
	})
	return err
}

// survey reads the cache and asks who references what. Without an error, nothing is in doubt.
func (c *Cache) survey(ctx context.Context) (*inventory, error) {
	if c.opts.References == nil {
		return nil, errNobodyKnows
	}
	inv, err := c.disk.inventory(ctx)
	if err != nil {
		return nil, err
	}
	if len(inv.damaged) > 0 {
		for _, d := range inv.damaged { // useless as it is, and a reason to remove nothing else for as long as it stays
			err = errors.Join(err, c.verifyBlob(ctx, d))
		}
		return nil, errors.Join(errors.New("what belongs to a damaged manifest is not known"), err)
	}
	if err := c.ask(ctx, inv); err != nil {
		return nil, err
	}
	c.counts.images.Store(int64(len(inv.units)))
	return inv, nil
}

func (c *Cache) ask(ctx context.Context, inv *inventory) error {
	uses, err := c.opts.References(ctx)
	if err != nil {
		return fmt.Errorf("ask which images are referenced: %w", err)
	}
	if err := inv.mark(uses); err != nil {
		return err
	}
	c.markLeases(inv)
	return nil
}

// sweep removes what pick picks. References are asked for again before each removal.
func (c *Cache) sweep(ctx context.Context, why string, pick func(*inventory) []*unit) ([]Removed, error) {
	ctx, cancel := context.WithTimeout(ctx, collectTime)
	defer cancel()
	c.sweeper.Lock()
	defer c.sweeper.Unlock()
	inv, err := c.survey(ctx)
	if err != nil {
		return nil, err
	}
	c.noteUse(inv)
	var removed []Removed
	for _, u := range pick(inv) {
		if err := ctx.Err(); err != nil {
			return removed, err
		}
		if err := c.ask(ctx, inv); err != nil {
			return removed, err
		}
		if !u.removable() {
			continue
		}
		r, ok, err := c.remove(inv, u)
		if err != nil {
			return removed, err
		}
		if ok {
			c.opts.Logger.Info("image removed from the cache", "digest", r.Digest, "tags", r.Tags, "freed", HumanBytes(r.Bytes),
				"lastUsed", r.LastUsed, "reason", why)
			removed = append(removed, r)
		}
	}
	return removed, nil
}

// noteUse counts being referenced as being used, so that an image whose last machine goes today is not the oldest.
func (c *Cache) noteUse(inv *inventory) {
	now := c.opts.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range inv.units {
		if len(u.users) > 0 && u.complete {
			c.touchLocked(u.digest, now)
		}
	}
}

// remove takes a unit out of the cache, the manifest first: without it nobody finds the rest. ok is false if it came
// into use meanwhile.
func (c *Cache) remove(inv *inventory, u *unit) (r Removed, ok bool, err error) {
	r = Removed{Digest: u.digest, Tags: u.tags, LastUsed: u.lastUsed}
	owned := owners(inv.units)
	now := c.opts.Clock.Now()
	c.mu.Lock()
	if c.closed || c.inUseLocked(u.digest, now) {
		c.mu.Unlock()
		return r, false, nil
	}
	var trash []string
	for _, d := range u.blobs {
		if owned[d] > 1 || c.inUseLocked(d, now) {
			continue
		}
		var moved string
		if moved, err = c.discardLocked(d); err != nil {
			break
		}
		trash = append(trash, moved)
		r.Bytes += inv.allocated(d)
		c.disk.forgetTags(u.tags, d)
	}
	for top, img := range c.loaded {
		if img.Digest == u.digest {
			delete(c.loaded, top)
		}
	}
	c.mu.Unlock()
	inv.units = slices.DeleteFunc(inv.units, func(other *unit) bool { return other == u })
	for _, path := range trash {
		_ = os.Remove(path) // else it goes with the leftovers
	}
	if err != nil {
		return r, false, fmt.Errorf("remove image %s: %w", u.digest, err)
	}
	c.counts.removals.Add(1)
	c.counts.removed.Add(r.Bytes)
	return r, true, nil
}

// discardLocked takes a blob out of sight, which is quick whatever its size, and returns where it can be removed. On a
// disk too full for another name it is removed at once.
func (c *Cache) discardLocked(d digest.Digest) (string, error) {
	delete(c.proven, d)
	delete(c.touched, d)
	path := c.disk.blobPath(d)
	moved := filepath.Join(c.opts.Dir, "partial", "tmp-removed-"+d.Encoded())
	err := os.Rename(path, moved)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return moved, err
}

// forgetTags drops the tags that mean a digest.
func (d *disk) forgetTags(tags []string, dg digest.Digest) {
	for _, t := range tags {
		if rec, err := d.loadTag(t); err == nil && rec.Digest == dg {
			_ = os.Remove(d.tagPath(t)) // a tag of nothing is looked up anew
		}
	}
}

// removeOrphans removes what belongs to no image, and to no pull.
func (c *Cache) removeOrphans(inv *inventory, now time.Time) {
	for _, d := range inv.orphans(now) {
		c.mu.Lock()
		if c.closed || c.inUseLocked(d, now) {
			c.mu.Unlock()
			continue
		}
		moved, err := c.discardLocked(d)
		c.mu.Unlock()
		_ = os.Remove(moved)
		if err != nil {
			c.opts.Logger.Warn("leftover of a pull not removed", "digest", d, "error", err)
			continue
		}
		c.opts.Logger.Info("leftover of a pull removed", "digest", d, "freed", HumanBytes(inv.allocated(d)))
		c.counts.removed.Add(inv.allocated(d))
	}
}
