// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// StepName names a step. The name is the failpoint, the log field, the event's step, the metric label and the line
// in the docs.
type StepName string

// The steps, in the order in which a machine's life goes through them.
const (
	StepImageResolve    StepName = "image.resolve"
	StepVolumePrepare   StepName = "volume.prepare"
	StepNICPrepare      StepName = "nic.prepare"
	StepVMMLaunch       StepName = "vmm.launch"
	StepVMMCreate       StepName = "vmm.create"
	StepVMMBoot         StepName = "vmm.boot"
	StepVolumeAttach    StepName = "volume.attach"
	StepVolumeResize    StepName = "volume.resize"
	StepVolumeDetach    StepName = "volume.detach"
	StepVolumeRelease   StepName = "volume.release"
	StepNICAttach       StepName = "nic.attach"
	StepNICDetach       StepName = "nic.detach"
	StepGuestResume     StepName = "guest.resume"
	StepGuestStopped    StepName = "guest.stopped"
	StepShutdownBegin   StepName = "shutdown.begin"
	StepShutdownCancel  StepName = "shutdown.cancel"
	StepGuestShutdown   StepName = "guest.shutdown"
	StepPowerButton     StepName = "power.button"
	StepVMMStop         StepName = "vmm.stop"
	StepVMMKill         StepName = "vmm.kill"
	StepVMMReap         StepName = "vmm.reap"
	StepNICRelease      StepName = "nic.release"
	StepVolumeDelete    StepName = "volume.delete"
	StepDirectoryRemove StepName = "directory.remove"
	StepRecordRemove    StepName = "record.remove"
)

// StepNames lists all steps, for docs, metrics and failpoints.
func StepNames() []StepName {
	return []StepName{
		StepImageResolve, StepVolumePrepare, StepNICPrepare, StepVMMLaunch, StepVMMCreate, StepVMMBoot,
		StepVolumeAttach, StepVolumeResize, StepVolumeDetach, StepVolumeRelease, StepNICAttach, StepNICDetach,
		StepGuestResume, StepGuestStopped, StepShutdownBegin, StepShutdownCancel, StepGuestShutdown, StepPowerButton,
		StepVMMStop, StepVMMKill, StepVMMReap, StepNICRelease, StepVolumeDelete, StepDirectoryRemove, StepRecordRemove,
	}
}

// Step is one thing to do; Target is the volume or network interface it is about, if any.
type Step struct {
	Name   StepName
	Target string
}

// ProcessState is what is known of a machine's VMM process.
type ProcessState string

// The process states. There is none for "unknown": then nothing is planned at all.
const (
	ProcessNone     ProcessState = "none"     // none is recorded
	ProcessIntended ProcessState = "intended" // about to be spawned when the daemon was stopped; may yet appear
	ProcessAlive    ProcessState = "alive"
	ProcessGone     ProcessState = "gone" // recorded, and proven to be over
)

// View is all that planning looks at.
type View struct {
	Machine *machine.Machine
	Process ProcessState
	VM      vmm.Observation // of a living process
	Driver  string          // that new VMMs are started with; one of another driver gets no new guest
	Grace   time.Duration   // of a guest that is to go down; 0 = its power is cut at once
	Button  time.Duration   // between two presses of the power button
	Agent   bool            // guests are asked by their agent first
	Now     time.Time
	DeviceView
	Resumed time.Time // when a guest that its VMM had paused was last let go on, in this life of the daemon
}

// Plan is what to do next. An empty one means that the host agrees.
type Plan struct {
	Steps []Step
	// Wait is how long to do nothing before planning again; 0 with no steps = until something happens.
	Wait time.Duration
	// Devices says that the steps are about devices: those of different devices do not depend on each other.
	Devices bool
	Notes   []Note // on devices that are not as wanted and wait
}

// Times that planning knows.
const (
	// stopPatience is how long a VMM may take to end after it was asked; it ends in 0.1–0.3 s when it is well.
	stopPatience = 10 * time.Second
	// resumeInterval is between two tries to let a paused guest go on.
	resumeInterval = 10 * time.Second
	// spawnPatience is how long a process may take to appear under its marker after the intent was recorded.
	spawnPatience = 3 * time.Second
)

// MakePlan compares what is wanted with what is there. It is a pure function.
func MakePlan(v View) Plan {
	d, r := &v.Machine.Desired, &v.Machine.Record
	switch {
	case v.Process == ProcessIntended:
		if age := v.Now.Sub(r.VMM.LaunchedAt); age >= 0 && age < spawnPatience {
			return Plan{Wait: spawnPatience - age}
		}
		return Plan{Steps: []Step{{Name: StepVMMReap}}}
	case v.Process == ProcessGone:
		return Plan{Steps: []Step{{Name: StepVMMReap}}}
	case d.Deleting():
		return planDeletion(v)
	case d.Power == machine.PowerOff:
		return planStop(v)
	}
	return planRun(v)
}

func planStop(v View) Plan {
	if v.Process == ProcessNone {
		return planDevices(v)
	}
	asked := v.Machine.Record.VMM.StopAskedAt
	if asked == nil {
		return planShutdown(v)
	}
	if age := v.Now.Sub(*asked); age >= 0 && age < stopPatience {
		return Plan{Wait: stopPatience - age}
	}
	return Plan{Steps: []Step{{Name: StepVMMKill}}}
}

func planDeletion(v View) Plan {
	if v.Process != ProcessNone {
		return planStop(v)
	}
	var steps []Step
	for _, name := range sortedKeys(v.Machine.Record.NICs) {
		steps = append(steps, Step{Name: StepNICRelease, Target: name})
	}
	for _, name := range sortedKeys(v.Machine.Record.Volumes) {
		steps = append(steps, Step{Name: StepVolumeDelete, Target: name})
	}
	return Plan{Steps: append(steps, Step{Name: StepDirectoryRemove}, Step{Name: StepRecordRemove})}
}

func planRun(v View) Plan {
	r := &v.Machine.Record
	if v.Machine.IsKeptOff() {
		return planStop(v)
	}
	if v.Process == ProcessNone {
		// A machine that cannot start must not keep from others what it was told to let go of. What cannot be let go of
		// is no reason not to start.
		if plan := planUnwanted(v); len(plan.Steps) > 0 {
			return plan
		}
		if wait := restartWait(v); wait > 0 {
			return Plan{Wait: wait}
		}
		return Plan{Steps: append(planPrepare(v),
			Step{Name: StepVMMLaunch}, Step{Name: StepVMMCreate}, Step{Name: StepVMMBoot})}
	}
	if r.VMM.StopAskedAt != nil { // power went off and on again: finish the stop first
		return planStop(v)
	}
	if r.Shutdown != nil {
		return Plan{Steps: []Step{{Name: StepShutdownCancel}}}
	}
	if v.VM.State != vmm.StateRunning && v.VM.State != vmm.StatePaused && r.VMM.Driver != v.Driver {
		// The hypervisor was changed. What a machine is given now (networks, Ignition) is made for the new one, so that
		// a VMM of the old one whose guest does not run can only make room.
		return planStop(v)
	}
	switch v.VM.State {
	case vmm.StateRunning:
		return planDevices(v)
	case vmm.StateFailed: // it cannot go on; end it, which counts as a crash
		return Plan{Steps: []Step{{Name: StepVMMKill}}}
	case vmm.StateIdle, vmm.StateEmpty:
		if v.VM.State == vmm.StateIdle && r.VMM.BootedAt != nil { // it ran, and nobody asked for its end
			return Plan{Steps: []Step{{Name: StepGuestStopped}}}
		}
		if wait := restartWait(v); wait > 0 && v.VM.State == vmm.StateIdle {
			return Plan{Wait: wait}
		}
		if !v.givenAll() { // a new VMM is simpler than devices changed in a guest that does not run to let go of them
			return planStop(v)
		}
		// Half-created by an earlier try is put right by create.
		return Plan{Steps: append(planPrepare(v), Step{Name: StepVMMCreate}, Step{Name: StepVMMBoot})}
	}
	return planPaused(v)
}

// planPaused lets a guest go on. One that its VMM paused, since the host could not do what it asked for, may be paused
// again at once, so it is tried only now and then.
func planPaused(v View) Plan {
	if v.VM.Problem == "" {
		return Plan{Steps: []Step{{Name: StepVMMBoot}}}
	}
	if left := v.Resumed.Add(resumeInterval).Sub(v.Now); left > 0 && left <= resumeInterval {
		return Plan{Wait: left}
	}
	return Plan{Steps: []Step{{Name: StepGuestResume}}}
}

// restartWait is how long a restart has to wait. More than any delay is means that the clock was set back.
func restartWait(v View) time.Duration {
	wait := v.Machine.Record.RestartAt.Sub(v.Now)
	if wait > DefaultMaxBackoff {
		return 0
	}
	return wait
}

// planPrepare lists what must be there before a VMM starts. All of it is listed each time: the steps find out
// themselves that there is nothing to do, and a host reboot may have taken things that the record still names. Before
// a VMM lives, what is in the way of something of the same name goes first.
func planPrepare(v View) []Step {
	d := &v.Machine.Desired
	var steps []Step
	if _, _, ok := d.BootImage(); ok {
		steps = append(steps, Step{Name: StepImageResolve})
	}
	for _, vol := range d.Volumes {
		if v.Process == ProcessNone {
			steps = append(steps, v.clearVolume(vol.Name)...)
		}
		steps = append(steps, Step{Name: StepVolumePrepare, Target: vol.Name})
	}
	for _, n := range d.NICs {
		if rec := v.Machine.Record.NICs[n.Name]; v.Process == ProcessNone && rec.Plugin != "" && !v.sameNIC(n.Name, rec) {
			steps = append(steps, Step{Name: StepNICRelease, Target: n.Name})
		}
		steps = append(steps, Step{Name: StepNICPrepare, Target: n.Name})
	}
	return steps
}
