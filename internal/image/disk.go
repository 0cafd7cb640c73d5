// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	dirMode  = 0o750
	fileMode = 0o640
	// staleAge is how old a partial download, a temporary file or a blob of no image must be before it is removed. A pull
	// that is still wanted after a restart resumes within minutes, so a day is far from touching one.
	staleAge = 24 * time.Hour
)

// errNotCached says that something needed is not on disk; it never leaves the package.
var errNotCached = errors.New("not in the cache")

// disk is the layout of the cache directory.
type disk struct{ dir string }

func openDisk(dir string) (*disk, error) {
	d := &disk{dir: dir}
	for _, sub := range []string{"blobs/sha256", "blobs/sha384", "blobs/sha512", "tags", "partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), dirMode); err != nil {
			return nil, fmt.Errorf("create image cache: %w", err)
		}
	}
	return d, nil
}

// blobPath is the final path of a blob. The digest must have been validated: its hex part names a file.
func (d *disk) blobPath(dg digest.Digest) string {
	return filepath.Join(d.dir, "blobs", dg.Algorithm().String(), dg.Encoded())
}

func (d *disk) partialPath(dg digest.Digest) string {
	return filepath.Join(d.dir, "partial", dg.String())
}

// has reports whether a verified blob of that size is there.
func (d *disk) has(dg digest.Digest, size int64) bool {
	info, err := os.Lstat(d.blobPath(dg))
	return err == nil && info.Mode().IsRegular() && info.Size() == size
}

// missing returns how many bytes of a blob are still to be downloaded.
func (d *disk) missing(desc ocispec.Descriptor) int64 {
	if d.has(desc.Digest, desc.Size) {
		return 0
	}
	if info, err := os.Lstat(d.partialPath(desc.Digest)); err == nil && info.Size() <= desc.Size {
		return desc.Size - info.Size()
	}
	return desc.Size
}

// readSmall reads a manifest, index or config and proves its digest again, which is cheap at that size.
func (d *disk) readSmall(dg digest.Digest) ([]byte, error) {
	path := d.blobPath(dg)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNotCached
	}
	if err != nil {
		return nil, fmt.Errorf("read cached manifest: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxManifestSize {
		return nil, errNotCached
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read cached manifest: %w", err)
	}
	if dg.Algorithm().FromBytes(data) != dg {
		return nil, errNotCached
	}
	return data, nil
}

// writeSmall stores bytes whose digest the caller has proven.
func (d *disk) writeSmall(dg digest.Digest, data []byte) error {
	if _, err := d.readSmall(dg); err == nil { // the length alone would keep a damaged one for ever
		return nil
	}
	return d.writeAtomic(d.blobPath(dg), data)
}

// writeAtomic writes a file so that after a crash it is there in full or not at all.
func (d *disk) writeAtomic(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Join(d.dir, "partial"), "tmp-")
	if err != nil {
		return fmt.Errorf("create temporary file: %w", err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(fileMode)
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = renameDurably(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}

// renameDurably renames a flushed file and flushes the directory that now names it.
func renameDurably(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// tagRecord is what a tag meant when it was last resolved. It is written only once the image is complete.
type tagRecord struct {
	Ref      string        `json:"ref"`
	Digest   digest.Digest `json:"digest"` // of the index, or of the manifest where there is no index
	Resolved time.Time     `json:"resolved"`
}

func (d *disk) tagPath(canonical string) string {
	return filepath.Join(d.dir, "tags", digest.FromString(canonical).Encoded())
}

func (d *disk) saveTag(rec tagRecord) error {
	data, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("encode tag record: %w", err)
	}
	return d.writeAtomic(d.tagPath(rec.Ref), data)
}

// loadTag returns errNotCached for a tag never seen or a record that cannot be read: it is only a memory of a
// registry's answer, and asking again is always right.
func (d *disk) loadTag(canonical string) (tagRecord, error) {
	rec, err := readTag(d.tagPath(canonical))
	if err != nil || rec.Ref != canonical {
		return tagRecord{}, errNotCached
	}
	return rec, nil
}

func readTag(path string) (tagRecord, error) {
	var rec tagRecord
	data, err := os.ReadFile(path)
	if err != nil {
		return rec, err
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		return rec, err
	}
	return rec, rec.Digest.Validate()
}

// tags returns every readable tag record.
func (d *disk) tags() ([]tagRecord, error) {
	entries, err := os.ReadDir(filepath.Join(d.dir, "tags"))
	if err != nil {
		return nil, fmt.Errorf("list cached tags: %w", err)
	}
	var recs []tagRecord
	for _, e := range entries {
		if rec, err := readTag(filepath.Join(d.dir, "tags", e.Name())); err == nil {
			recs = append(recs, rec)
		}
	}
	return recs, nil
}

// cleanUp removes partial downloads and temporary files untouched for staleAge. Younger ones may belong to a pull that
// will resume; so does one that keep is true for. It returns the names removed.
func (d *disk) cleanUp(now time.Time, keep func(digest.Digest) bool) ([]string, error) {
	dir := filepath.Join(d.dir, "partial")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list partial downloads: %w", err)
	}
	var removed []string
	for _, e := range entries {
		partial := digest.Digest(e.Name())
		temporary := strings.HasPrefix(e.Name(), "tmp-")
		if !temporary && (partial.Validate() != nil || keep(partial)) {
			continue // not ours, or just being taken up
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || now.Sub(info.ModTime()) < staleAge {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err == nil {
			removed = append(removed, e.Name())
		}
	}
	return removed, nil
}

// load assembles an image from the cache, errNotCached if any part of it is missing. top is the digest of an index or
// of a manifest.
func (d *disk) load(top digest.Digest, want ocispec.Platform) (*Image, error) {
	data, err := d.readSmall(top)
	if err != nil {
		return nil, err
	}
	doc, err := parseDocument(data)
	if err != nil {
		return nil, err
	}
	manifest := top
	if doc.isIndex() {
		desc, err := selectPlatform(doc.Manifests, want)
		if err != nil {
			return nil, err
		}
		manifest = desc.Digest
		if data, err = d.readSmall(manifest); err != nil {
			return nil, err
		}
		if doc, err = parseDocument(data); err != nil {
			return nil, err
		}
		if doc.isIndex() {
			return nil, failf(Invalid, "index points to another index")
		}
	}
	p, err := planOf(doc)
	if err != nil {
		return nil, err
	}
	return d.assemble(manifest, p, want)
}

func (d *disk) assemble(manifest digest.Digest, p *plan, want ocispec.Platform) (*Image, error) {
	data, err := d.readSmall(p.config.Digest)
	if err != nil {
		return nil, err
	}
	config, err := parseConfig(data, want)
	if err != nil {
		return nil, err
	}
	img := &Image{Digest: manifest, CommandLine: config.CommandLine, config: p.config}
	slots := img.slots()
	for r, desc := range p.layers {
		if !d.has(desc.Digest, desc.Size) {
			return nil, errNotCached
		}
		*slots[r] = &Blob{Path: d.blobPath(desc.Digest), Digest: desc.Digest, Size: desc.Size, MediaType: desc.MediaType}
	}
	return img, nil
}
