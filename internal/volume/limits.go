// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"strconv"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// maxLimit is more than any disk does: 1 TiB or operations a second.
const maxLimit = 1 << 40

// ParseLimits reads limits from the attributes of a connection, under the names that libvirt gives them:
// total_bytes_sec, read_bytes_sec, write_bytes_sec, total_iops_sec, read_iops_sec, write_iops_sec. Each is a whole number,
// and a total excludes the other two of its unit. Errors name the attribute below field.
func ParseLimits(field string, attributes map[string]string) (Limits, error) {
	var l Limits
	for _, one := range []struct {
		name string
		into *int64
	}{
		{"total_bytes_sec", &l.TotalBytes},
		{"read_bytes_sec", &l.ReadBytes},
		{"write_bytes_sec", &l.WriteBytes},
		{"total_iops_sec", &l.TotalOps},
		{"read_iops_sec", &l.ReadOps},
		{"write_iops_sec", &l.WriteOps},
	} {
		text, ok := attributes[one.name]
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 || n > maxLimit {
			return Limits{}, machine.InvalidField(field+"["+one.name+"]", "%q is no whole number of 1 to %d", text, int64(maxLimit))
		}
		*one.into = n
	}
	for _, unit := range []struct {
		total, read, write int64
		name               string
	}{{l.TotalBytes, l.ReadBytes, l.WriteBytes, "total_bytes_sec"}, {l.TotalOps, l.ReadOps, l.WriteOps, "total_iops_sec"}} {
		if unit.total > 0 && (unit.read > 0 || unit.write > 0) {
			return Limits{}, machine.InvalidField(field+"["+unit.name+"]", "excludes limits of reading and writing alone")
		}
	}
	return l, nil
}
