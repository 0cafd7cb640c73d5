// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// minReserve is left free by a pull whatever Options.Reserve says, in bytes, so that the state store can still write.
const minReserve = 64 << 20

// Amount is a number of bytes, or a share of the file system in percent; at most one of the two is set.
type Amount struct {
	Bytes   int64
	Percent int
}

// of returns the amount in bytes on a file system of that size.
func (a Amount) of(total uint64) int64 {
	if a.Percent > 0 {
		return int64(min(total/100*uint64(a.Percent), math.MaxInt64))
	}
	return a.Bytes
}

// Space is the size of a file system in bytes.
type Space struct{ Free, Total uint64 }

// HumanBytes writes a number of bytes as people do: "1.5 GiB". It rounds.
func HumanBytes(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d bytes", n)
	}
	value, unit := float64(n), 0
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for value /= 1024; value >= 1023.95 && unit < len(units)-1; unit++ {
		value /= 1024
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + units[unit]
}

// usage is how the cache stands with its limits. All is in bytes.
type usage struct {
	cache   int64 // what the cache takes of the disk, partial downloads included
	free    int64
	budget  int64 // 0 is no bound
	reserve int64
}

// usage measures without reading any file.
func (c *Cache) usage() (usage, error) {
	var u usage
	space, err := c.opts.FileSystem(c.opts.Dir)
	if err != nil {
		return u, err
	}
	u.free = int64(min(space.Free, math.MaxInt64))
	u.budget = c.opts.Budget.of(space.Total)
	u.reserve = max(c.opts.Reserve.of(space.Total), minReserve)
	for _, sub := range []string{"blobs/sha256", "blobs/sha384", "blobs/sha512", "partial"} {
		n, err := sizeOf(filepath.Join(c.opts.Dir, sub))
		if err != nil {
			return u, fmt.Errorf("measure the image cache: %w", err)
		}
		u.cache += n
	}
	c.counts.measured(u)
	return u, nil
}

func sizeOf(dir string) (int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	var n int64
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		n += allocated(info)
	}
	return n, nil
}

// excess is how many bytes must go before more can come, 0 if none.
func (u usage) excess(more int64) int64 {
	return max(0, u.overBudget(more), u.underReserve(more))
}

func (u usage) overBudget(more int64) int64 {
	if u.budget == 0 {
		return 0
	}
	return max(0, u.cache+more-u.budget)
}

func (u usage) underReserve(more int64) int64 { return max(0, u.reserve+more-u.free) }

// makeRoom has unreferenced images removed if a pull needs that, and refuses to begin what cannot end. What other pulls
// have still to write counts as written. Others may fill the disk meanwhile; that is noticed when it happens.
func (c *Cache) makeRoom(ctx context.Context, e *entry, missing int64) error {
	if missing == 0 {
		return nil
	}
	c.room.Lock()
	defer c.room.Unlock()
	need := missing + c.owedByOthers(e)
	u, err := c.usage()
	if err != nil {
		return err
	}
	var why error
	if over := u.excess(need); over > 0 {
		var removed []Removed
		if removed, why = c.free(ctx, over, "a pull needs room"); len(removed) > 0 {
			if u, err = c.usage(); err != nil {
				return err
			}
		}
	}
	if err := c.refusal(u, missing, need, why); err != nil {
		return err
	}
	e.owed.Store(missing)
	return nil
}

func (c *Cache) owedByOthers(e *entry) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var n int64
	for _, other := range c.entries {
		if other != e && other.waiting != nil {
			n += other.owed.Load()
		}
	}
	return n
}

// refusal names what a pull lacks, nil if it lacks nothing.
func (c *Cache) refusal(u usage, missing, need int64, why error) error {
	needs := "the image needs " + HumanBytes(missing)
	if need > missing {
		needs += " and other pulls " + HumanBytes(need-missing)
	}
	rest := "removing the images that nobody uses would not be enough"
	if why != nil {
		rest = "nothing was removed: " + why.Error()
	}
	switch short := u.underReserve(need); {
	case short > 0:
		return failf(Exhausted, "%s, %s has %s free and %s of that stay in reserve (images.reserve): %s are missing; %s",
			needs, c.opts.Dir, HumanBytes(max(u.free, 0)), HumanBytes(u.reserve), HumanBytes(short), rest)
	case u.overBudget(need) > 0:
		return failf(Exhausted, "%s, the image cache holds %s of %s (images.budget): %s are missing; %s",
			needs, HumanBytes(u.cache), HumanBytes(u.budget), HumanBytes(u.overBudget(need)), rest)
	}
	return nil
}
