// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/event"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume/ceph"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume/localdisk"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume/storagedaemon"
)

// storageDir is where the sockets of storage daemons are, below the runtime directory. Short, since they end up in
// sockets' paths.
const storageDir = "sd"

// newVolumes makes the volume plugins. The storage daemons' manager is there for every hypervisor, so that what another
// configuration started is found and ended.
func (p *parts) newVolumes(cfg *config.Config, st *store.Store, events *event.Recorder) ([]volume.Plugin, error) {
	driver := p.drivers.chosen
	can := driver.Capabilities()
	if err := checkCache(cfg, driver.Name(), can, p.log); err != nil {
		return nil, err
	}
	disks, err := localdisk.New(localdisk.Options{
		Logger: p.log, Overlays: can.Qcow2 && cfg.Volumes.LocalDisk.Overlays == config.Auto, Limits: diskLimits(cfg),
	})
	if err != nil {
		return nil, err
	}
	if p.storage, err = storagedaemon.New(storagedaemon.Options{
		Supervisor: p.supervisor, Binary: cfg.Volumes.Ceph.StorageDaemon, StateID: st.ID(),
		RuntimeDir: filepath.Join(cfg.RuntimeDir, storageDir), Logger: p.log, Changed: p.volumeChanged(st, events),
	}); err != nil {
		return nil, err
	}
	policy := cfg.Volumes.CachePolicy
	images, err := ceph.New(ceph.Options{
		Native: native(cfg, can), Daemons: p.storage, Logger: p.log,
		Unsafe: policy == config.CacheUnsafe, Direct: policy == config.CacheNone || policy == config.CacheDirectSync,
	})
	return []volume.Plugin{disks, images}, err
}

// volumeChanged passes on what storage daemons do by themselves: an event for people, and another look at the machine.
func (p *parts) volumeChanged(st *store.Store, events *event.Recorder) func(volume.Ref, string) {
	return func(ref volume.Ref, problem string) {
		m, err := st.Get(ref.MachineID)
		if err != nil {
			return // the sweep sees to what belongs to no machine
		}
		if problem != "" {
			recorder{events}.Event(m, reconcile.Warning, "VolumeInterrupted", "AttachVolume", "volume "+ref.Name+": "+problem)
		} else {
			recorder{events}.Event(m, reconcile.Normal, "VolumeServed", "AttachVolume", "volume "+ref.Name+" is served again")
		}
		p.reconciler.VolumeChanged(ref)
	}
}

func diskLimits(cfg *config.Config) volume.Limits {
	l := cfg.Volumes.LocalDisk.Limits
	return volume.Limits{
		TotalBytes: l.TotalBytes, ReadBytes: l.ReadBytes, WriteBytes: l.WriteBytes,
		TotalOps: int64(l.TotalOps), ReadOps: int64(l.ReadOps), WriteOps: int64(l.WriteOps),
	}
}

// checkCache refuses a cache policy that the hypervisor cannot keep for local disks, and says what becomes of it on each
// path. None is ever weaker than what is asked for.
func checkCache(cfg *config.Config, driver string, can vmm.Capabilities, log *slog.Logger) error {
	asked := vmm.CachePolicy(cfg.Volumes.CachePolicy)
	if l := diskLimits(cfg); l != (volume.Limits{}) && !can.DiskLimits {
		return fmt.Errorf("volumes.localDisk.limits: %s bounds no disks", driver)
	} else if driver == host.CloudHypervisor && l.ReadBytes+l.WriteBytes+l.ReadOps+l.WriteOps > 0 {
		return fmt.Errorf("volumes.localDisk.limits: %s bounds reads and writes together; use totalBytes and totalOps", driver)
	}
	if can.Cache[vmm.PathFile][asked] == "" {
		return fmt.Errorf("volumes.cachePolicy (--volume-cache-policy): %s cannot keep %s for local disks; use writeback or none, which keep what a guest flushed", driver, asked)
	}
	for _, path := range []vmm.DiskPath{vmm.PathFile, vmm.PathRBD, vmm.PathVhostUser} {
		kept := can.Cache[path][asked]
		used := path == vmm.PathFile || (path == vmm.PathRBD) == native(cfg, can)
		switch {
		case !used:
		case kept != asked:
			log.Warn("cache policy", "path", path, "asked", asked, "in_force", kept, "reason", "this path cannot do what is asked; what is in force is no weaker")
		default:
			log.Info("cache policy", "path", path, "in_force", kept)
		}
	}
	return nil
}

// native reports whether the hypervisor itself is the client of Ceph.
func native(cfg *config.Config, can vmm.Capabilities) bool {
	return can.RBD && cfg.Volumes.Ceph.Access != config.CephStorageDaemon
}

// applyVolumes puts what the configuration says of volumes into the reconciler's options.
func applyVolumes(cfg *config.Config, o *reconcile.Options) {
	o.CachePolicy = vmm.CachePolicy(cfg.Volumes.CachePolicy)
	o.KeepDetached = cfg.Volumes.KeepDetached
	o.ResizeByReplug = cfg.Volumes.ResizeByReplug == config.ReplugAllowed
}
