// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"runtime"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/qemu"
)

// drivers are the hypervisors of this server: the chosen one runs new machines, the other one, if its binary is here,
// keeps hold of machines that it started before the configuration changed.
type drivers struct {
	chosen vmm.Driver
	all    map[string]vmm.Driver
	known  []host.Decision // the chosen one first
	ch     *cloudhypervisor.Driver
}

func (d *drivers) close() {
	if d.ch != nil {
		_ = d.ch.Close()
	}
}

func wants(cfg *config.Config) host.Wants {
	h := cfg.Hypervisor
	return host.Wants{
		Hypervisor: h.Driver, Accelerator: h.QEMU.Accelerator, Arch: runtime.GOARCH,
		CloudHypervisorBinary: h.CloudHypervisor.Binary, CloudHypervisorFirmware: h.CloudHypervisor.Firmware,
		QEMUBinary: h.QEMU.Binary, QEMUFirmware: h.QEMU.Firmware,
	}
}

func newDrivers(ctx context.Context, cfg *config.Config, log *slog.Logger) (*drivers, error) {
	want := wants(cfg)
	decision, err := host.Choose(ctx, want)
	if err != nil {
		return nil, err
	}
	for _, reason := range decision.Reasons {
		log.Info("hypervisor", "reason", reason)
	}
	for _, warning := range decision.Warnings {
		log.Warn("hypervisor", "warning", warning)
	}
	d := &drivers{all: map[string]vmm.Driver{}, known: []host.Decision{decision}}
	if d.chosen, err = d.make(decision, cfg, log); err != nil {
		return nil, err
	}
	d.all[d.chosen.Name()] = d.chosen
	want.Hypervisor = host.QEMU
	if decision.Driver == host.QEMU {
		want.Hypervisor = host.CloudHypervisor
	}
	other, err := host.Choose(ctx, want)
	if err != nil {
		log.Debug("the other hypervisor is not here", "reason", err)
		return d, nil
	}
	second, err := d.make(other, cfg, log)
	if err != nil {
		log.Warn("the other hypervisor cannot be used", "reason", err)
		return d, nil
	}
	d.all[second.Name()] = second
	d.known = append(d.known, other)
	return d, nil
}

func (d *drivers) make(decision host.Decision, cfg *config.Config, log *slog.Logger) (vmm.Driver, error) {
	if decision.Driver == host.CloudHypervisor {
		driver, err := cloudhypervisor.New(cloudhypervisor.Options{
			Binary: decision.Binary.Path, Version: decision.Binary.Version, Firmware: decision.Firmware.Code,
			Arch: runtime.GOARCH, Logger: log,
			// Who set storage daemons up wants their volumes to be plugged into any machine that runs.
			SharedMemory: cfg.Volumes.Ceph.StorageDaemon != "" || cfg.Volumes.Ceph.Access == config.CephStorageDaemon,
		})
		if err != nil {
			return nil, err
		}
		d.ch = driver
		return driver, nil
	}
	firmware := qemu.Firmware{Code: decision.Firmware.Code, Vars: decision.Firmware.Vars}
	if firmware.Vars == "" {
		firmware = qemu.Firmware{BIOS: decision.Firmware.Code}
	}
	return qemu.New(qemu.Options{
		Binary: decision.Binary.Path, Architecture: runtime.GOARCH, Accelerator: decision.Accelerator, Firmware: firmware,
		HotplugPorts: cfg.Hypervisor.QEMU.HotplugPorts,
	})
}
