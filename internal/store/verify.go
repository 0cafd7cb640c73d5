// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
)

// The format of a bbolt file, version 2. Numbers are in the byte order of the machine that wrote it.
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	noFreelist     = ^uint64(0)
	pageHeader     = 16
	metaLength     = 64
	bucketHeader   = 16
	elementSize    = 16
	branchPage     = 0x01
	leafPage       = 0x02
	freelistPage   = 0x10
	bucketElement  = 0x01
	maxPageSize    = 16 << 20
	freelistMarker = 0xFFFF // the count is the first element
)

// verifier checks the structure of a bbolt file: that each page is what its parent takes it for, lies in the file,
// is used once, and holds its keys in order. bbolt itself meets damage with a panic, part of the time on goroutines
// where nobody can catch it, so no file is handed to it unchecked. Values are not looked at.
type verifier struct {
	r         io.ReaderAt
	pageSize  int64
	root      uint64
	freelist  uint64
	highWater uint64 // first page that was never used
	used      []bool
}

func verify(r io.ReaderAt, size int64) error {
	v := &verifier{r: r}
	if err := v.readMeta(size); err != nil {
		return err
	}
	if v.highWater < 2 || v.highWater > uint64(size/v.pageSize) {
		return fmt.Errorf("cut off: %d bytes of %d pages", size, v.highWater)
	}
	v.used = make([]bool, v.highWater)
	v.used[0], v.used[1] = true, true
	if err := v.tree(v.root, nil, nil); err != nil {
		return err
	}
	return v.checkFreelist()
}

// readMeta takes the newer of the two meta pages that is whole. The second one's place depends on the page size.
func (v *verifier) readMeta(size int64) error {
	var newest uint64
	found := false
	buf := make([]byte, pageHeader+metaLength)
	for at := int64(0); at <= maxPageSize && at < size; at = max(1024, 2*at) {
		if _, err := v.r.ReadAt(buf, at); err != nil {
			break
		}
		m := buf[pageHeader:]
		u32, u64 := binary.NativeEndian.Uint32, binary.NativeEndian.Uint64
		sum := fnv.New64a()
		sum.Write(m[:56])
		pageSize := int64(u32(m[8:]))
		if u32(m) != boltMagic || u32(m[4:]) != boltVersion || u64(m[56:]) != sum.Sum64() ||
			pageSize < 1024 || pageSize > maxPageSize || at != 0 && at != pageSize {
			continue
		}
		if txid := u64(m[48:]); !found || txid > newest {
			found, newest = true, txid
			v.pageSize, v.root, v.freelist, v.highWater = pageSize, u64(m[16:]), u64(m[32:]), u64(m[40:])
		}
	}
	if !found {
		return errors.New("no valid meta page")
	}
	return nil
}

// page reads a page with what overflows from it, and marks it as used.
func (v *verifier) page(id uint64) ([]byte, error) {
	if id < 2 || id >= v.highWater {
		return nil, fmt.Errorf("page %d lies outside of the file", id)
	}
	header := make([]byte, pageHeader)
	if _, err := v.r.ReadAt(header, int64(id)*v.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	if got := binary.NativeEndian.Uint64(header); got != id {
		return nil, fmt.Errorf("page %d says it is page %d", id, got)
	}
	pages := uint64(binary.NativeEndian.Uint32(header[12:])) + 1
	if pages > v.highWater-id {
		return nil, fmt.Errorf("page %d runs over the end of the file", id)
	}
	for i := id; i < id+pages; i++ {
		if v.used[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		v.used[i] = true
	}
	data := make([]byte, int64(pages)*v.pageSize)
	if _, err := v.r.ReadAt(data, int64(id)*v.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return data, nil
}

// element is one entry of a branch or leaf page.
type element struct {
	key, value []byte // value of leaves
	child      uint64 // page of branches
	bucket     bool
}

// elements parses a page, with its keys between least (inclusive) and limit (exclusive); nil means no bound.
func elements(data []byte, least, limit []byte) (list []element, leaf bool, err error) {
	kind, count := binary.NativeEndian.Uint16(data[8:]), int(binary.NativeEndian.Uint16(data[10:]))
	if kind != branchPage && kind != leafPage || kind == branchPage && count == 0 {
		return nil, false, fmt.Errorf("unexpected type %#x with %d elements", kind, count)
	}
	if pageHeader+count*elementSize > len(data) {
		return nil, false, fmt.Errorf("%d elements do not fit", count)
	}
	leaf = kind == leafPage
	for i := range count {
		at := pageHeader + i*elementSize
		raw := data[at:]
		u32 := func(n int) uint64 { return uint64(binary.NativeEndian.Uint32(raw[n:])) }
		var e element
		var pos, keySize, valueSize uint64
		if leaf {
			e.bucket = u32(0)&bucketElement != 0
			pos, keySize, valueSize = u32(4), u32(8), u32(12)
		} else {
			pos, keySize, e.child = u32(0), u32(4), binary.NativeEndian.Uint64(raw[8:])
		}
		if pos+keySize+valueSize > uint64(len(raw)) {
			return nil, false, fmt.Errorf("element %d runs over the end of its page", i)
		}
		e.key, e.value = raw[pos:pos+keySize], raw[pos+keySize:pos+keySize+valueSize]
		order := bytes.Compare(e.key, least)
		if order < 0 || i > 0 && order == 0 || limit != nil && bytes.Compare(e.key, limit) >= 0 {
			return nil, false, fmt.Errorf("key of element %d is out of order", i)
		}
		least = e.key
		list = append(list, e)
	}
	return list, leaf, nil
}

// tree checks the pages below id.
func (v *verifier) tree(id uint64, least, limit []byte) error {
	data, err := v.page(id)
	if err != nil {
		return err
	}
	list, leaf, err := elements(data, least, limit)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	if leaf {
		return v.buckets(list)
	}
	for i, e := range list {
		below := limit
		if i+1 < len(list) {
			below = list[i+1].key
		}
		if err := v.tree(e.child, e.key, below); err != nil {
			return err
		}
	}
	return nil
}

// buckets checks the buckets among the elements of a leaf. A small one lies inline in its value.
func (v *verifier) buckets(list []element) error {
	for _, e := range list {
		if !e.bucket {
			continue
		}
		if len(e.value) < bucketHeader {
			return fmt.Errorf("bucket %q is cut off", e.key)
		}
		if root := binary.NativeEndian.Uint64(e.value); root != 0 {
			if err := v.tree(root, nil, nil); err != nil {
				return err
			}
			continue
		}
		inline := e.value[bucketHeader:]
		if len(inline) < pageHeader {
			return fmt.Errorf("bucket %q is cut off", e.key)
		}
		inner, leaf, err := elements(inline, nil, nil)
		if err != nil {
			return fmt.Errorf("bucket %q: %w", e.key, err)
		}
		if !leaf || slices.ContainsFunc(inner, func(x element) bool { return x.bucket }) {
			return fmt.Errorf("bucket %q is no plain leaf", e.key)
		}
	}
	return nil
}

// checkFreelist checks the list of free pages. This package writes none, but another tool may have.
func (v *verifier) checkFreelist() error {
	if v.freelist == noFreelist {
		return nil
	}
	data, err := v.page(v.freelist)
	if err != nil {
		return fmt.Errorf("list of free pages: %w", err)
	}
	count, first := uint64(binary.NativeEndian.Uint16(data[10:])), uint64(pageHeader)
	if count == freelistMarker {
		count, first = binary.NativeEndian.Uint64(data[pageHeader:]), pageHeader+8
	}
	if binary.NativeEndian.Uint16(data[8:]) != freelistPage || count > (uint64(len(data))-first)/8 {
		return errors.New("list of free pages is damaged")
	}
	last := uint64(0)
	for i := range count {
		id := binary.NativeEndian.Uint64(data[first+8*i:])
		if id <= last || id >= v.highWater || v.used[id] {
			return fmt.Errorf("page %d is listed as free, but is not", id)
		}
		last = id
	}
	return nil
}
