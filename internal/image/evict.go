// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"cmp"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
)

// unit is one image as a matter of removal: the manifest of a platform and the blobs that go with it. Images share
// blobs; one is removed with the last image that has it.
type unit struct {
	digest   digest.Digest   // of the manifest
	blobs    []digest.Digest // those that are there: manifest, the indexes that name it, config, layers
	complete bool
	lastUsed time.Time
	tags     []string // sorted
	users    []string // who references it, sorted
	leased   bool     // handed out a moment ago, or needed by a pull
}

func (u *unit) removable() bool { return len(u.users) == 0 && !u.leased }

// owners counts for each blob the images that have it.
func owners(units []*unit) map[digest.Digest]int {
	n := map[digest.Digest]int{}
	for _, u := range units {
		for _, d := range u.blobs {
			n[d]++
		}
	}
	return n
}

// choose picks what goes so that need bytes come free: the least recently used first, and none that could stay because
// the others suffice. If all that may go is less than need, all of it is picked. freed is what comes free, which is less
// than the sum of the images' sizes where they share blobs with others.
func choose(units []*unit, size func(digest.Digest) int64, need int64) (victims []*unit, freed int64) {
	if need <= 0 {
		return nil, 0
	}
	candidates := slices.DeleteFunc(slices.Clone(units), func(u *unit) bool { return !u.removable() })
	slices.SortFunc(candidates, func(a, b *unit) int {
		return cmp.Or(a.lastUsed.Compare(b.lastUsed), cmp.Compare(a.digest, b.digest))
	})
	left := owners(units)
	for _, u := range candidates {
		if freed >= need {
			break
		}
		for _, d := range u.blobs {
			if left[d]--; left[d] == 0 {
				freed += size(d)
			}
		}
		victims = append(victims, u)
	}
	for i := len(victims) - 1; i >= 0; i-- { // the most recently used is spared first
		u := victims[i]
		var back int64
		for _, d := range u.blobs {
			if left[d] == 0 {
				back += size(d)
			}
		}
		if freed-back < need {
			continue
		}
		for _, d := range u.blobs {
			left[d]++
		}
		freed -= back
		victims = slices.Delete(victims, i, i+1)
	}
	return victims, freed
}
