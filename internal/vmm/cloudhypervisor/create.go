// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

// Create defines the VM; see vmm.VM.
func (v *conn) Create(ctx context.Context, cfg vmm.Config) error {
	if err := v.driver.Validate(cfg); err != nil {
		return err
	}
	if cfg.Ref != v.ref {
		return machine.Errorf(machine.Invalid, "create VM: the configuration is of machine %s, the connection of %s", cfg.MachineID, v.ref.MachineID)
	}
	for i, d := range cfg.Disks {
		if d.VhostUser == "" { // a server is asked before it is needed, at boot
			if err := checkDisk(ctx, fmt.Sprintf("disks[%d]", i), d); err != nil {
				return err
			}
		}
	}
	want := v.driver.vmConfig(cfg, v.major)
	return v.change(ctx, "create VM", func(info api.Info, defined bool) error {
		if defined {
			if !idle(info) || sameDefinition(want, info.Config) && v.sameTaps(ctx, cfg, info.Config) {
				return nil
			}
			if err := v.client.Delete(ctx); err != nil {
				return err
			}
		}
		return v.define(ctx, want, cfg.NICs)
	})
}

// sameTaps looks whether the descriptors that the VMM has of taps still lead to them. One of a tap that was removed
// meanwhile would make the next boot fail and cost the VM that interface.
func (v *conn) sameTaps(ctx context.Context, cfg vmm.Config, have api.VMConfig) bool {
	taps := map[string]string{}
	for _, nic := range cfg.NICs {
		taps[nic.ID] = nic.Tap
	}
	ping, err := v.client.Ping(ctx)
	if err != nil || ping.PID == 0 {
		return true
	}
	for _, net := range have.Net {
		for _, fd := range net.FDs {
			if name, known := tapBehind(ping.PID, fd); known && name != taps[net.ID] {
				return false
			}
		}
	}
	return true
}

// define creates the VM where none is: first without network interfaces, which are added before it boots, since
// descriptors of taps are taken only then. A create that fails over the consoles leaves its configuration behind, which
// then looks like a VM that is defined: it is deleted, unless there was no answer and nobody knows. So is one that an
// interface could not be added to.
func (v *conn) define(ctx context.Context, want api.VMConfig, all []vmm.NIC) error {
	if err := v.clearConsole(ctx); err != nil {
		return err
	}
	plugs := make([]plug, 0, len(all))
	defer func() {
		for _, p := range plugs {
			p.close()
		}
	}()
	byName := true
	for _, nic := range all {
		p, err := v.driver.openPlug(nic)
		if err != nil {
			return err
		}
		plugs = append(plugs, p)
		byName = byName && len(p.taps) == 0
	}
	if byName {
		plugs = nil
	} else {
		want.Net, want.Devices = nil, nil
	}
	err := v.client.Create(ctx, want)
	for i := 0; err == nil && i < len(plugs); i++ {
		err = v.addNIC(ctx, plugs[i])
	}
	if err == nil || errors.Is(err, api.ErrUnavailable) || errors.Is(err, api.ErrAlreadyCreated) {
		return err
	}
	return alsoFailed(err, v.client.Delete(ctx))
}

// clearConsole removes what is left of a console while no VM is defined: the socket of a crashed VMM, or the one that
// this VMM still listens on, since it keeps the console of a VM that is deleted before it ever ran.
func (v *conn) clearConsole(ctx context.Context) error {
	return removeSocket(ctx, v.paths.serial, func(serial net.Conn) bool {
		control, err := dial(ctx, v.paths.api)
		if err != nil {
			return false
		}
		defer control.Close()
		pid := peerPID(control)
		return pid != 0 && pid == peerPID(serial)
	})
}

// Boot starts the guest; see vmm.VM. A paused guest goes on.
func (v *conn) Boot(ctx context.Context) error {
	return v.change(ctx, "boot guest", func(info api.Info, defined bool) error {
		switch {
		case !defined:
			return api.ErrNotCreated
		case info.State == api.StateRunning:
			return nil
		case info.State == api.StatePaused:
			return v.client.Resume(ctx)
		}
		for _, d := range info.Config.Disks {
			if d.VhostUser {
				if err := pingVhostUser(ctx, d.VhostSocket); err != nil {
					return err
				}
			}
		}
		return v.boot(ctx)
	})
}

// boot boots a VM that says it is created, once more if something known to be in the way could be removed.
func (v *conn) boot(ctx context.Context) error {
	// A device that cannot be made is lost from the VM's definition, so that nothing may be in its way. Somebody who
	// listens may be the half VM of a boot that failed late.
	if err := removeStale(ctx, v.paths.vsock); err != nil && !machine.IsKind(err, machine.FailedPrecondition) {
		return err
	}
	err := v.client.Boot(ctx)
	switch {
	case errors.Is(err, api.ErrAlreadyCreated):
		// What says Created and cannot be booted is the half VM of a boot that failed late, or was booted by
		// somebody else since it was asked.
		info, defined, askErr := v.identify(ctx)
		if askErr != nil {
			return askErr
		}
		if defined && info.State == api.StateRunning {
			return nil
		}
		if err := v.cutPower(ctx); err != nil {
			return err
		}
		err = v.client.Boot(ctx)
	case errors.Is(err, api.ErrSocketInUse) && !exists(v.paths.vsock):
		// The VM could not open its console, so the listener, if there is one, is not this VMM.
		if err := v.cutPower(ctx); err != nil {
			return err
		}
		if err := removeStale(ctx, v.paths.serial); err != nil {
			return err
		}
		err = v.client.Boot(ctx)
	}
	if err != nil && !errors.Is(err, api.ErrUnavailable) {
		// A half VM would hold locks and taps until the next try.
		err = alsoFailed(err, v.cutPower(ctx))
	}
	return err
}
