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

// A stored value is one byte of format version, eight of the machine's version, four of CRC-32C, then JSON. The
// checksum covers bucket, key, everything before it and the JSON, so that a value in the wrong place is found, too.
const (
	envelopeFormat = 1
	headerSize     = 13
)

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func checksum(bucket, key string, value []byte) uint32 {
	t := castagnoli()
	sum := crc32.Update(0, t, []byte(bucket))
	sum = crc32.Update(sum, t, []byte{0})
	sum = crc32.Update(sum, t, []byte(key))
	sum = crc32.Update(sum, t, []byte{0})
	sum = crc32.Update(sum, t, value[:headerSize-4])
	return crc32.Update(sum, t, value[headerSize:])
}

// encode makes the stored form of v.
func encode(bucket, key string, version uint64, v any) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, machine.Wrap(machine.Invalid, err, "encode "+bucket+" half of machine "+key)
	}
	value := make([]byte, headerSize, headerSize+len(payload))
	value[0] = envelopeFormat
	binary.BigEndian.PutUint64(value[1:], version)
	value = append(value, payload...)
	binary.BigEndian.PutUint32(value[headerSize-4:], checksum(bucket, key, value))
	return value, nil
}

// decode reads a stored value into v. It keeps no reference to value.
func decode(bucket, key string, value []byte, v any) (version uint64, err error) {
	switch {
	case len(value) < headerSize:
		return 0, fmt.Errorf("%s: cut off after %d bytes", bucket, len(value))
	case value[0] != envelopeFormat:
		return 0, fmt.Errorf("%s: unknown format %d", bucket, value[0])
	case binary.BigEndian.Uint32(value[headerSize-4:]) != checksum(bucket, key, value):
		return 0, errors.New(bucket + ": wrong checksum")
	}
	if err := json.Unmarshal(value[headerSize:], v); err != nil {
		return 0, fmt.Errorf("%s: %w", bucket, err)
	}
	return binary.BigEndian.Uint64(value[1:]), nil
}
