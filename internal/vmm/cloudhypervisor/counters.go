// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

var _ vmm.Counting = (*conn)(nil)

// Counters tells what disks and network interfaces have done; see vmm.Counting.
func (v *conn) Counters(ctx context.Context) ([]vmm.DeviceCounters, error) {
	answer, err := v.client.Counters(ctx)
	if errors.Is(err, api.ErrNotRunning) {
		return nil, nil
	}
	if err != nil {
		return nil, fail("ask for counters", err)
	}
	var all []vmm.DeviceCounters
	for _, id := range slices.Sorted(maps.Keys(answer)) {
		n := answer[id]
		switch {
		case id == configDiskID:
		case strings.HasPrefix(id, vmm.DeviceID("disk", "")):
			all = append(all, vmm.DeviceCounters{
				Kind: vmm.DiskDevice, ID: id, InBytes: counted(n["read_bytes"]), OutBytes: counted(n["write_bytes"]),
				InOps: counted(n["read_ops"]), OutOps: counted(n["write_ops"]),
			})
		case strings.HasPrefix(id, vmm.DeviceID("nic", "")):
			all = append(all, vmm.DeviceCounters{
				Kind: vmm.NICDevice, ID: id, InBytes: counted(n["rx_bytes"]), OutBytes: counted(n["tx_bytes"]),
				InOps: counted(n["rx_frames"]), OutOps: counted(n["tx_frames"]),
			})
		}
	}
	return all, nil
}

// counted makes nothing of the greatest value, which stands for a counter that does not apply.
func counted(n uint64) uint64 {
	if n == ^uint64(0) {
		return 0
	}
	return n
}
