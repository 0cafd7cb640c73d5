// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
)

// Entry is one complete image in the cache.
type Entry struct {
	Digest   digest.Digest `json:"digest"`         // of the manifest: what a machine's record pins
	Tags     []string      `json:"tags,omitempty"` // that meant it when they were last resolved
	Bytes    int64         `json:"bytes"`          // on disk, blobs shared with other images included
	UsedBy   []string      `json:"usedBy"`         // machines that reference it
	LastUsed time.Time     `json:"lastUsed"`       // to the hour
	Busy     bool          `json:"busy,omitempty"` // handed out a moment ago, or needed by a pull: it stays meanwhile
}

// Listing is what the cache holds and how it stands with its limits.
type Listing struct {
	Images  []Entry `json:"images"`  // by digest
	Bytes   int64   `json:"bytes"`   // the whole cache on disk, partial downloads included
	Budget  int64   `json:"budget"`  // bytes; 0 is no bound
	Reserve int64   `json:"reserve"` // bytes
	Free    int64   `json:"free"`    // bytes on the file system
	// Unknown says why it is not known who uses the images; nothing is removed then.
	Unknown string `json:"unknown,omitempty"`
}

// List reads the manifests of the cache from disk and asks who references what.
func (c *Cache) List(ctx context.Context) (Listing, error) {
	u, err := c.usage()
	if err != nil {
		return Listing{}, err
	}
	inv, err := c.disk.inventory(ctx)
	if err != nil {
		return Listing{}, err
	}
	l := Listing{Bytes: u.cache, Budget: u.budget, Reserve: u.reserve, Free: u.free}
	if c.opts.References == nil {
		l.Unknown = errNobodyKnows.Error()
	} else if err := c.ask(ctx, inv); err != nil {
		l.Unknown = err.Error()
	}
	l.Images = inv.entries()
	return l, nil
}

// ListDir lists the images in a cache that no process may be using. Who references them is not known. It writes
// nothing.
func ListDir(ctx context.Context, dir string) (Listing, error) {
	l := Listing{Unknown: "the daemon does not run"}
	inv, err := (&disk{dir: dir}).inventory(ctx)
	if err != nil {
		return l, err
	}
	for _, b := range inv.blobs {
		l.Bytes += b.allocated
	}
	space, err := fileSystem(dir)
	l.Images, l.Free = inv.entries(), int64(space.Free)
	return l, err
}

func (inv *inventory) entries() []Entry {
	entries := []Entry{}
	for _, u := range inv.units {
		if u.complete {
			entries = append(entries, Entry{
				Digest: u.digest, Tags: u.tags, Bytes: inv.sizeOf(u), LastUsed: u.lastUsed, Busy: u.leased,
				UsedBy: append([]string{}, u.users...),
			})
		}
	}
	return entries
}

// Pruned is what Prune removed, or would remove.
type Pruned struct {
	Removed []Removed `json:"removed"` // the least recently used first
	InUse   int       `json:"inUse"`   // images that stay because machines reference them
	Busy    int       `json:"busy"`    // images that stay because they were handed out a moment ago or are being pulled
}

// Prune removes every image that nobody references, whatever the limits; with dryRun it only says which. Leftovers of
// pulls go with it as ClearLeftovers has them.
func (c *Cache) Prune(ctx context.Context, dryRun bool) (Pruned, error) {
	var p Pruned
	removed, err := c.sweep(ctx, "pruned", func(inv *inventory) []*unit {
		for _, u := range inv.units {
			switch {
			case !u.complete:
			case len(u.users) > 0:
				p.InUse++
			case u.leased:
				p.Busy++
			}
		}
		victims := slices.DeleteFunc(slices.Clone(inv.units), func(u *unit) bool { return !u.removable() })
		slices.SortStableFunc(victims, func(a, b *unit) int { return a.lastUsed.Compare(b.lastUsed) })
		if dryRun {
			p.Removed = inv.forecast(victims)
			return nil
		}
		return victims
	})
	if dryRun || err != nil {
		return p, err
	}
	p.Removed = append([]Removed{}, removed...)
	return p, c.ClearLeftovers(ctx)
}

// forecast says what removing the victims would bring.
func (inv *inventory) forecast(victims []*unit) []Removed {
	out := []Removed{}
	left := owners(inv.units)
	for _, u := range victims {
		r := Removed{Digest: u.digest, Tags: u.tags, LastUsed: u.lastUsed}
		for _, d := range u.blobs {
			if left[d]--; left[d] == 0 {
				r.Bytes += inv.allocated(d)
			}
		}
		out = append(out, r)
	}
	return out
}

// Stats are numbers about the cache as of the last look at it; reading them looks at no file.
type Stats struct {
	Images       int   // complete or not, as of the last removal run
	Bytes        int64 // on disk
	Budget       int64 // bytes; 0 is no bound
	Reserve      int64 // bytes
	Removals     int64 // images removed since the start
	RemovedBytes int64 // bytes that came free by that
}

// Stats returns the numbers.
func (c *Cache) Stats() Stats {
	return Stats{
		Images: int(c.counts.images.Load()), Bytes: c.counts.cache.Load(), Budget: c.counts.budget.Load(),
		Reserve: c.counts.reserve.Load(), Removals: c.counts.removals.Load(), RemovedBytes: c.counts.removed.Load(),
	}
}

// counters are what Stats answers with, and what was told already.
type counters struct {
	images, cache, budget, reserve, removals, removed atomic.Int64

	excess atomic.Int64 // bytes above the limits that could not be removed, when last told
}

func (n *counters) measured(u usage) {
	n.cache.Store(u.cache)
	n.budget.Store(u.budget)
	n.reserve.Store(u.reserve)
}
