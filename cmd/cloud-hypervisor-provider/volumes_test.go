// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// likeCloudHypervisor keeps two policies for files, and none for the storage daemons' disks without flushing each write.
func likeCloudHypervisor() vmm.Capabilities {
	return vmm.Capabilities{DiskLimits: true, Cache: map[vmm.DiskPath]map[vmm.CachePolicy]vmm.CachePolicy{
		vmm.PathFile: {vmm.CacheNone: vmm.CacheNone, vmm.CacheWriteBack: vmm.CacheWriteBack, vmm.CacheUnsafe: vmm.CacheWriteBack},
		vmm.PathVhostUser: {
			vmm.CacheNone: vmm.CacheDirectSync, vmm.CacheWriteBack: vmm.CacheWriteThrough, vmm.CacheUnsafe: vmm.CacheUnsafe,
			vmm.CacheDirectSync: vmm.CacheDirectSync, vmm.CacheWriteThrough: vmm.CacheWriteThrough,
		},
	}}
}

func TestACachePolicyThatCannotBeKeptIsRefusedAtStartAndAnUpgradeIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		change        func(*config.Config)
		refused, told string
	}{
		"writeback":            {told: "path=vhost-user asked=writeback in_force=writethrough"},
		"none":                 {change: func(c *config.Config) { c.Volumes.CachePolicy = config.CacheNone }, told: "path=vhost-user asked=none in_force=directsync"},
		"unsafe":               {change: func(c *config.Config) { c.Volumes.CachePolicy = config.CacheUnsafe }, told: "path=file asked=unsafe in_force=writeback"},
		"directsync":           {change: func(c *config.Config) { c.Volumes.CachePolicy = config.CacheDirectSync }, refused: "--volume-cache-policy"},
		"writethrough":         {change: func(c *config.Config) { c.Volumes.CachePolicy = config.CacheWriteThrough }, refused: "use writeback or none"},
		"limits of reads only": {change: func(c *config.Config) { c.Volumes.LocalDisk.Limits.ReadOps = 5 }, refused: "use totalBytes and totalOps"},
		"limits in total":      {change: func(c *config.Config) { c.Volumes.LocalDisk.Limits.TotalOps = 5 }, told: "in_force=writethrough"},
	} {
		cfg := config.Default()
		if c.change != nil {
			c.change(&cfg)
		}
		var log bytes.Buffer
		err := checkCache(&cfg, "cloud-hypervisor", likeCloudHypervisor(), slog.New(slog.NewTextHandler(&log, nil)))
		if c.refused == "" && (err != nil || !strings.Contains(log.String(), c.told)) {
			t.Errorf("%s: %v\n%s", name, err, log.String())
		}
		if c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
