// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

var _ vmm.Counting = (*virtualMachine)(nil)

// Counters tells what the disks have done; see vmm.Counting. QEMU has no counters of network interfaces.
func (v *virtualMachine) Counters(ctx context.Context) ([]vmm.DeviceCounters, error) {
	var answer []struct {
		QDev  string `json:"qdev"` // path of the front end, or its id
		Stats struct {
			ReadBytes  uint64 `json:"rd_bytes"`
			WriteBytes uint64 `json:"wr_bytes"`
			Reads      uint64 `json:"rd_operations"`
			Writes     uint64 `json:"wr_operations"`
		} `json:"stats"`
	}
	if err := v.ask(ctx, "query-blockstats", nil, &answer); err != nil {
		return nil, err
	}
	var all []vmm.DeviceCounters
	for _, d := range answer {
		id := diskOf(d.QDev)
		if id == "" {
			continue
		}
		all = append(all, vmm.DeviceCounters{
			Kind: vmm.DiskDevice, ID: id, InBytes: d.Stats.ReadBytes, OutBytes: d.Stats.WriteBytes,
			InOps: d.Stats.Reads, OutOps: d.Stats.Writes,
		})
	}
	return all, nil
}

// diskOf finds a disk's id in the path of its front end; empty if it is none of the machine's disks.
func diskOf(qdev string) string {
	if id := deviceOf(qdev); strings.HasPrefix(id, vmm.DeviceID("disk", "")) {
		return id
	}
	return ""
}
