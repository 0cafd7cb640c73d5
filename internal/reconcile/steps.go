// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// stepDeadlines bound each step; those not listed have 30 s. Preparing a volume copies a whole image.
var stepDeadlines = map[StepName]time.Duration{
	StepVolumePrepare: 30 * time.Minute,
	StepVolumeDelete:  5 * time.Minute,
	StepVMMLaunch:     time.Minute,
	StepVMMBoot:       bootTimeout + connectTimeout,
	StepVolumeAttach:  attachTimeout,
	StepVolumeResize:  attachTimeout,
	StepVolumeRelease: time.Minute,
}

// step runs one step between its two failpoints.
func (r *Reconciler) step(ctx context.Context, m *machine.Machine, s Step) error {
	deadline := stepDeadlines[s.Name]
	if deadline == 0 {
		deadline = controlTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if err := r.o.Failpoint(ctx, s.Name, "before"); err != nil {
		return err
	}
	if err := r.act(ctx, m, s); err != nil {
		return err
	}
	return r.o.Failpoint(ctx, s.Name, "after")
}

func (r *Reconciler) act(ctx context.Context, m *machine.Machine, s Step) error {
	switch s.Name {
	case StepImageResolve:
		return r.resolveImage(ctx, m)
	case StepVolumePrepare:
		return r.prepareVolume(ctx, m, s.Target)
	case StepNICPrepare:
		return r.prepareNIC(ctx, m, s.Target)
	case StepVMMLaunch:
		return r.launch(ctx, m)
	case StepVMMCreate:
		return r.create(ctx, m)
	case StepVMMBoot:
		return r.boot(ctx, m)
	case StepVolumeAttach:
		return r.attachVolume(ctx, m, s.Target)
	case StepVolumeResize:
		return r.resizeVolume(ctx, m, s.Target)
	case StepVolumeDetach:
		return r.detachVolume(ctx, m, s.Target)
	case StepVolumeRelease:
		return r.releaseVolume(ctx, m, s.Target)
	case StepNICAttach:
		return r.attachNIC(ctx, m, s.Target)
	case StepNICDetach:
		return r.detachNIC(ctx, m, s.Target)
	case StepGuestResume:
		return r.resume(ctx, m)
	case StepGuestStopped:
		return r.guestStopped(ctx, m)
	case StepShutdownBegin:
		return r.beginShutdown(ctx, m)
	case StepShutdownCancel:
		return r.cancelShutdown(ctx, m)
	case StepGuestShutdown:
		return r.askAgent(ctx, m)
	case StepPowerButton:
		return r.pressButton(ctx, m)
	case StepVMMStop:
		return r.stop(ctx, m)
	case StepVMMKill:
		return r.kill(ctx, m)
	case StepVMMReap:
		return r.reap(ctx, m)
	case StepNICRelease:
		return r.releaseNIC(ctx, m, s.Target)
	case StepVolumeDelete:
		return r.deleteVolume(ctx, m, s.Target)
	case StepDirectoryRemove:
		return r.removeDirectory(m)
	case StepRecordRemove:
		return r.removeRecord(ctx, m)
	}
	return fmt.Errorf("no such step %q", s.Name)
}

// record changes the record of a machine that must still exist.
func (r *Reconciler) record(ctx context.Context, id string, fn func(*machine.Record)) error {
	_, err := r.o.Store.UpdateRecord(ctx, id, func(rec *machine.Record) error {
		fn(rec)
		return nil
	})
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}
