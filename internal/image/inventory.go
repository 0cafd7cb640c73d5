// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Use says that somebody needs an image, or a single blob of one.
type Use struct {
	User   string        // who, such as the id of a machine
	Ref    string        // as it is given to Get; not looked at when Digest is set
	Digest digest.Digest // of a manifest, an index or a blob
}

// blobFile is what the file system says of a blob.
type blobFile struct {
	size, allocated int64
	modTime         time.Time
}

// inventory is what lies in the cache, read from disk.
type inventory struct {
	disk  *disk
	blobs map[digest.Digest]blobFile
	units []*unit // by digest
	// damaged are manifests, indexes and configs whose bytes are not what their names say. What belonged to them is
	// not known.
	damaged []digest.Digest
	// unresolved says that something referenced is known by its digest and not there in full: a blob of no image may
	// be a part of it.
	unresolved bool
}

// inventory reads names and sizes of all blobs and the content of all manifests. Any error means that it is not whole.
func (d *disk) inventory(ctx context.Context) (*inventory, error) {
	inv := &inventory{disk: d, blobs: map[digest.Digest]blobFile{}}
	manifests, indexes := map[digest.Digest]*plan{}, map[digest.Digest]*document{}
	for _, algorithm := range []digest.Algorithm{digest.SHA256, digest.SHA384, digest.SHA512} {
		entries, err := os.ReadDir(filepath.Join(d.dir, "blobs", algorithm.String()))
		if err != nil {
			return nil, fmt.Errorf("list image cache: %w", err)
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			dg := digest.NewDigestFromEncoded(algorithm, e.Name())
			if dg.Validate() != nil {
				continue // not ours
			}
			doc, err := inv.look(dg)
			if err != nil {
				return nil, fmt.Errorf("list image cache: %w", err)
			}
			if doc == nil {
				continue
			}
			if doc.isIndex() {
				indexes[dg] = doc
			} else if p, err := planOf(doc); err == nil {
				manifests[dg] = p
			}
		}
	}
	inv.assemble(manifests, indexes)
	return inv, inv.addTags()
}

// look notes a blob and returns the document in it, nil if it holds none. A blob that vanished is none.
func (inv *inventory) look(dg digest.Digest) (*document, error) {
	path := inv.disk.blobPath(dg)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	inv.blobs[dg] = blobFile{size: info.Size(), allocated: allocated(info), modTime: info.ModTime()}
	if info.Size() > maxManifestSize {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		delete(inv.blobs, dg)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(data) == 0 || data[0] != '{' {
		return nil, nil
	}
	if dg.Algorithm().FromBytes(data) != dg {
		inv.damaged = append(inv.damaged, dg)
		return nil, nil
	}
	return documentIn(data), nil
}

// documentIn returns nil for a config, or for a layer that is JSON.
func documentIn(data []byte) *document {
	doc, err := parseDocument(data)
	if err != nil {
		return nil
	}
	return doc
}

// assemble makes a unit of each manifest.
func (inv *inventory) assemble(manifests map[digest.Digest]*plan, indexes map[digest.Digest]*document) {
	for dg, p := range manifests {
		u := &unit{digest: dg, blobs: []digest.Digest{dg}, complete: true, lastUsed: inv.blobs[dg].modTime}
		for _, desc := range p.blobs() {
			if b, ok := inv.blobs[desc.Digest]; !ok || b.size != desc.Size {
				u.complete = false
			}
			u.add(inv, desc.Digest)
		}
		for _, d := range u.blobs {
			if at := inv.blobs[d].modTime; !u.complete && at.After(u.lastUsed) {
				u.lastUsed = at
			}
		}
		inv.units = append(inv.units, u)
		for index, doc := range indexes {
			if slices.ContainsFunc(doc.Manifests, func(m ocispec.Descriptor) bool { return m.Digest == dg }) {
				u.add(inv, index)
			}
		}
	}
	slices.SortFunc(inv.units, func(a, b *unit) int { return cmp.Compare(a.digest, b.digest) })
}

func (u *unit) add(inv *inventory, d digest.Digest) {
	if _, there := inv.blobs[d]; there && !slices.Contains(u.blobs, d) {
		u.blobs = append(u.blobs, d)
	}
}

// addTags gives the units their names.
func (inv *inventory) addTags() error {
	tags, err := inv.disk.tags()
	if err != nil {
		return err
	}
	for _, t := range tags {
		for _, u := range inv.having(t.Digest) {
			u.tags = append(u.tags, t.Ref)
			slices.Sort(u.tags)
		}
	}
	return nil
}

// having returns the units with that blob.
func (inv *inventory) having(d digest.Digest) []*unit {
	var out []*unit
	for _, u := range inv.units {
		if slices.Contains(u.blobs, d) {
			out = append(out, u)
		}
	}
	return out
}

// mark notes who references what, in place of what was noted before. An error means that this could not be found out.
func (inv *inventory) mark(uses []Use) error {
	inv.unresolved = false
	for _, u := range inv.units {
		u.users = nil
	}
	for _, use := range uses {
		d, err := inv.meaning(use)
		if err != nil {
			return fmt.Errorf("find the image of %s: %w", use.User, err)
		}
		if d == "" {
			continue
		}
		whole := false
		for _, u := range inv.having(d) {
			whole = whole || u.complete
			if at, found := slices.BinarySearch(u.users, use.User); !found {
				u.users = slices.Insert(u.users, at, use.User)
			}
		}
		inv.unresolved = inv.unresolved || !whole
	}
	return nil
}

// meaning returns the digest that a use is about, "" if it means nothing that could be here.
func (inv *inventory) meaning(use Use) (digest.Digest, error) {
	if use.Digest != "" {
		return use.Digest, use.Digest.Validate()
	}
	r, err := parseReference(use.Ref)
	switch {
	case err == nil && r.digest != "":
		return r.digest, nil
	case err == nil:
		return inv.tagged(r.String())
	}
	return "", nil // what is malformed was never pulled
}

// tagged returns what a tag meant when it was last resolved.
func (inv *inventory) tagged(canonical string) (digest.Digest, error) {
	data, err := os.ReadFile(inv.disk.tagPath(canonical))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // never seen, or under way and held by its pull
	}
	if err != nil {
		return "", err
	}
	var rec tagRecord
	if err := json.Unmarshal(data, &rec); err != nil {
		return "", fmt.Errorf("what tag %s means cannot be read: %w", canonical, err)
	}
	if rec.Ref != canonical {
		return "", fmt.Errorf("what tag %s means is not what its file is about", canonical)
	}
	return rec.Digest, rec.Digest.Validate()
}

// markLeases notes what was handed out a moment ago. An image of which a part is missing may be of a pull that goes on
// once the machine that wants it is looked at again, after a restart or a break.
func (c *Cache) markLeases(inv *inventory) {
	now := c.opts.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range inv.units {
		u.leased = c.inUseLocked(u.digest, now) || !u.complete && now.Sub(u.lastUsed) < resumeAge
	}
}

func (inv *inventory) allocated(d digest.Digest) int64 { return inv.blobs[d].allocated }

// size returns what the blobs of a unit take of the disk, shared or not, in bytes.
func (inv *inventory) sizeOf(u *unit) int64 {
	var n int64
	for _, d := range u.blobs {
		n += inv.allocated(d)
	}
	return n
}

// orphans returns the blobs that belong to no image and are old enough to belong to no pull, not even one that is taken
// up again after a restart.
func (inv *inventory) orphans(now time.Time) []digest.Digest {
	if inv.unresolved {
		return nil
	}
	owned := owners(inv.units)
	var out []digest.Digest
	for d, b := range inv.blobs {
		if owned[d] == 0 && now.Sub(b.modTime) >= staleAge {
			out = append(out, d)
		}
	}
	slices.Sort(out)
	return out
}
