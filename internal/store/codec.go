// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// Buckets of state.db.
const (
	metaBucket       = "meta"
	desiredBucket    = "desired"
	recordBucket     = "record"
	quarantineBucket = "quarantine"
)

func buckets() []string {
	return []string{metaBucket, desiredBucket, recordBucket, quarantineBucket}
}

// A key is eight bytes that rise with each machine made, then the id. Machines made together, which are worked on
// together, thus lie together, and a commit writes few pages although ids are in no order.
const sequenceSize = 8

func makeKey(sequence uint64, id string) []byte {
	return append(binary.BigEndian.AppendUint64(make([]byte, 0, sequenceSize+len(id)), sequence), id...)
}

// parseKey takes a key apart; one that is too short is an id of its own.
func parseKey(key []byte) (sequence uint64, id string, ok bool) {
	if len(key) <= sequenceSize {
		return 0, string(key), false
	}
	return binary.BigEndian.Uint64(key), string(key[sequenceSize:]), true
}

// A stored value is one byte of format version, eight of the machine's version, four of CRC-32C, then JSON. The
// checksum covers bucket, id, everything before it and the JSON, so that a value in the wrong place is found, too.
const (
	envelopeFormat = 1
	headerSize     = 13
)

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func checksum(bucket, id string, value []byte) uint32 {
	t := castagnoli()
	sum := crc32.Update(0, t, []byte(bucket))
	sum = crc32.Update(sum, t, []byte{0})
	sum = crc32.Update(sum, t, []byte(id))
	sum = crc32.Update(sum, t, []byte{0})
	sum = crc32.Update(sum, t, value[:headerSize-4])
	return crc32.Update(sum, t, value[headerSize:])
}

// encode makes the stored form of v.
func encode(bucket, id string, version uint64, v any) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, machine.Wrap(machine.Invalid, err, "encode "+bucket+" half of machine "+id)
	}
	value := make([]byte, headerSize, headerSize+len(payload))
	value[0] = envelopeFormat
	binary.BigEndian.PutUint64(value[1:], version)
	value = append(value, payload...)
	binary.BigEndian.PutUint32(value[headerSize-4:], checksum(bucket, id, value))
	return value, nil
}

// decode reads a stored value into v. It keeps no reference to value.
func decode(bucket, id string, value []byte, v any) (version uint64, err error) {
	switch {
	case len(value) < headerSize:
		return 0, fmt.Errorf("%s: cut off after %d bytes", bucket, len(value))
	case value[0] != envelopeFormat:
		return 0, fmt.Errorf("%s: unknown format %d", bucket, value[0])
	case binary.BigEndian.Uint32(value[headerSize-4:]) != checksum(bucket, id, value):
		return 0, errors.New(bucket + ": wrong checksum")
	}
	if err := json.Unmarshal(value[headerSize:], v); err != nil {
		return 0, fmt.Errorf("%s: %w", bucket, err)
	}
	return binary.BigEndian.Uint64(value[1:]), nil
}
