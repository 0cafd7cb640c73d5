// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"

	"github.com/google/uuid"
)

// A record of the journal begins on a block of its own, so that a torn write never reaches one that was acknowledged.
// Numbers are big-endian:
//
//	 0  magic; no text holds its first byte
//	 4  format version, three zeros
//	 8  identity of the store
//	24  sequence number: one more than that of the record before
//	32  length of the table
//	36  length of the values
//	40  CRC-32C of the values
//	44  CRC-32C of the 44 bytes before and of the table
//	48  table: for each entry one byte of kind, two of key length, four of value length, the key
//	..  values in the order of the table, each with a checksum of its own (see encode); zeros up to the next block
const (
	journalMagic  = "\xffCHJ"
	journalFormat = 1
	journalHeader = 48
	journalBlock  = 4096
	entryHeader   = 7
)

// Kinds of entries. A removal takes both halves.
const (
	putDesired = 1
	putRecord  = 2
	removal    = 3
)

// entry is one change of what state.db holds under a key.
type entry struct {
	kind  byte
	key   []byte
	value []byte
}

// journal is the file that makes a write durable before state.db has it: one write and one sync for each batch, into
// blocks that exist already. It is a ring: what state.db has by now is written over.
type journal struct {
	file     *os.File
	owner    uuid.UUID
	size     int64  // allocated
	head     int64  // where the oldest record lies that state.db may lack
	tail     int64  // where the next one goes; equal to head if there is none
	highest  int64  // end of all that was ever written
	fresh    int64  // bytes appended since somebody set this to 0
	sequence uint64 // of the last record
	doubtful int64  // place of a record that failed, so that nobody knows whether it is there; -1 if none
	sync     func(*os.File) error
	buf      []byte
}

// recordSize is what entries take in the journal.
func recordSize(entries []entry) int64 {
	size := int64(journalHeader)
	for _, e := range entries {
		size += entryHeader + int64(len(e.key)) + int64(len(e.value))
	}
	return (size + journalBlock - 1) / journalBlock * journalBlock
}

// place says where a record of so many bytes goes, -1 if there is no room.
func (j *journal) place(size int64) int64 {
	switch {
	case size > j.size:
	case j.head == j.tail:
		return 0
	case j.tail < j.head:
		if j.tail+size < j.head { // never equal: that means empty
			return j.tail
		}
	case j.tail+size <= j.size:
		return j.tail
	case size < j.head:
		return 0
	}
	return -1
}

func (j *journal) hasRoom(size int) bool { return j.place(int64(size)) >= 0 }

// release gives free what lies before end, the end of a record.
func (j *journal) release(end int64) { j.head = end }

// append makes an encoded record durable; there must be room. After an error nobody knows whether the disk has it. It
// is not synced again, since the kernel tells of a lost write only once: the next record is written over it, so that
// it counts only if the daemon is killed before that. A trial tells whether the disk takes a record, and is written
// over likewise.
func (j *journal) append(record []byte, trial bool) error {
	at := j.place(int64(len(record)))
	if j.doubtful >= 0 && j.doubtful != at {
		if err := j.write(make([]byte, journalBlock), j.doubtful); err != nil {
			return err
		}
	}
	j.doubtful = at
	if err := j.write(record, at); err != nil {
		return err
	}
	if trial {
		return nil // and in doubt: it has the next number
	}
	j.doubtful = -1
	if j.head == j.tail {
		j.head = at
	}
	j.tail = at + int64(len(record))
	j.fresh += int64(len(record))
	j.sequence++
	return nil
}

func (j *journal) write(data []byte, at int64) error {
	j.highest = max(j.highest, at+int64(len(data)))
	if _, err := j.file.WriteAt(data, at); err != nil {
		return fmt.Errorf("write to journal: %w", err)
	}
	if err := j.sync(j.file); err != nil {
		return fmt.Errorf("sync journal: %w", err)
	}
	return nil
}

// encode makes the next record. It is valid until the next call.
func (j *journal) encode(entries []entry) []byte {
	size := int(recordSize(entries))
	if cap(j.buf) < size || cap(j.buf) > 4*size && cap(j.buf) > maxBatchBytes {
		j.buf = make([]byte, 0, max(size, 64<<10))
	}
	b := j.buf[:0]
	b = append(b, journalMagic...)
	b = append(b, journalFormat, 0, 0, 0)
	b = append(b, j.owner[:]...)
	b = binary.BigEndian.AppendUint64(b, j.sequence+1)
	b = append(b, make([]byte, journalHeader-len(b))...)
	for _, e := range entries {
		b = append(b, e.kind)
		b = binary.BigEndian.AppendUint16(b, uint16(len(e.key)))
		b = binary.BigEndian.AppendUint32(b, uint32(len(e.value)))
		b = append(b, e.key...)
	}
	values := len(b)
	for _, e := range entries {
		b = append(b, e.value...)
	}
	binary.BigEndian.PutUint32(b[32:], uint32(values-journalHeader))
	binary.BigEndian.PutUint32(b[36:], uint32(len(b)-values))
	binary.BigEndian.PutUint32(b[40:], crc32.Checksum(b[values:], castagnoli()))
	binary.BigEndian.PutUint32(b[44:], headChecksum(b[:values]))
	end := len(b)
	b = b[:size]
	clear(b[end:])
	j.buf = b
	return b
}

// headChecksum is that of header and table.
func headChecksum(head []byte) uint32 {
	sum := crc32.Checksum(head[:44], castagnoli())
	return crc32.Update(sum, castagnoli(), head[journalHeader:])
}

// clear takes all records out. All of it must be in state.db.
func (j *journal) clear() error {
	if err := writeZeros(j.file, 0, j.highest); err != nil {
		return fmt.Errorf("clear journal: %w", err)
	}
	j.head, j.tail, j.highest, j.doubtful = 0, 0, 0, -1
	return nil
}

// head is header and table of a record.
type head struct {
	format       byte
	owner        uuid.UUID
	sequence     uint64
	table        []byte
	valuesLength int64
	valuesSum    uint32
}

func (h *head) length() int64 { return journalHeader + int64(len(h.table)) + h.valuesLength }

// readHead reads what a record at this place begins with; nil means that none does, or that it is damaged.
func (j *journal) readHead(at int64) (*head, error) {
	raw := make([]byte, journalHeader)
	if at+journalHeader > j.size {
		return nil, nil
	}
	if _, err := j.file.ReadAt(raw, at); err != nil {
		return nil, err
	}
	u32 := binary.BigEndian.Uint32
	tableLength := int64(u32(raw[32:]))
	h := &head{
		format: raw[4], owner: uuid.UUID(raw[8:24]), sequence: binary.BigEndian.Uint64(raw[24:]),
		valuesLength: int64(u32(raw[36:])), valuesSum: u32(raw[40:]),
	}
	if string(raw[:4]) != journalMagic || at+journalHeader+tableLength+h.valuesLength > j.size {
		return nil, nil
	}
	raw = append(raw, make([]byte, tableLength)...)
	if _, err := j.file.ReadAt(raw[journalHeader:], at+journalHeader); err != nil {
		return nil, err
	}
	if headChecksum(raw) != u32(raw[44:]) {
		return nil, nil
	}
	h.table = raw[journalHeader:]
	return h, nil
}

// readEntries reads the entries of a record, and tells whether its values are whole.
func (j *journal) readEntries(f found) (entries []entry, whole bool, err error) {
	values := make([]byte, f.valuesLength)
	if _, err := j.file.ReadAt(values, f.at+journalHeader+int64(len(f.table))); err != nil {
		return nil, false, err
	}
	whole = crc32.Checksum(values, castagnoli()) == f.valuesSum
	for t := f.table; len(t) > 0; {
		if len(t) < entryHeader {
			return nil, false, errors.New("table of entries is cut off")
		}
		k, v := int(binary.BigEndian.Uint16(t[1:])), int(binary.BigEndian.Uint32(t[3:]))
		e := entry{kind: t[0]}
		if t = t[entryHeader:]; k > len(t) || v > len(values) || e.kind < putDesired || e.kind > removal {
			return nil, false, errors.New("table of entries makes no sense")
		}
		e.key, t = t[:k:k], t[k:]
		e.value, values = values[:v:v], values[v:]
		entries = append(entries, e)
	}
	return entries, whole, nil
}

// found is a record in the file.
type found struct {
	*head
	at int64
}

func (f found) end() int64 {
	return f.at + (f.length()+journalBlock-1)/journalBlock*journalBlock
}

// find returns all records behind a number, in order of their numbers. The owner must be that of the journal.
func (j *journal) find(behind uint64) ([]found, error) {
	var records []found
	for at := int64(0); at < j.size; at += journalBlock {
		h, err := j.readHead(at)
		if err != nil {
			return nil, err
		}
		if h == nil {
			continue
		}
		f := found{h, at}
		j.highest = max(j.highest, f.end())
		switch {
		case h.owner != j.owner:
			return nil, errors.New("it belongs to another state.db")
		case h.format != journalFormat:
			return nil, fmt.Errorf("it has format %d; this version knows %d", h.format, journalFormat)
		case h.sequence > behind:
			records = append(records, f)
		}
	}
	slices.SortFunc(records, func(a, b found) int { return cmp.Compare(a.sequence, b.sequence) })
	return records, nil
}

// replay hands over the entries of all records behind applied, the last one that state.db has, and finds head and
// tail. It fails if one of them is missing or cannot be read; the file is then left as it is.
//
// The last record may be torn, or one that failed: it was never acknowledged, since a record is written only when
// the one before it is durable. Any other that is not whole is damaged. If the damage is in values alone they are
// handed over as they are: reading them will tell which machine has it.
func (j *journal) replay(applied uint64, apply func(entry)) error {
	j.sequence, j.doubtful = applied, -1
	records, err := j.find(applied)
	if err != nil {
		return err
	}
	for i, f := range records {
		if f.sequence != j.sequence+1 {
			return fmt.Errorf("record %d is damaged or missing, but record %d is there", j.sequence+1, f.sequence)
		}
		entries, whole, err := j.readEntries(f)
		if err != nil {
			return err
		}
		if i == len(records)-1 && (!whole || len(entries) == 0) {
			j.doubtful = f.at
			break
		}
		for _, e := range entries {
			apply(e)
		}
		if i == 0 {
			j.head = f.at
		}
		j.tail, j.sequence = f.end(), f.sequence
	}
	return nil
}
