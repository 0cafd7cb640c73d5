// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

// Device names a volume or a network interface of a machine.
type Device struct {
	NIC  bool
	Name string
}

// id is what VMMs know the device by.
func (d Device) id() string {
	if d.NIC {
		return vmm.DeviceID("nic", d.Name)
	}
	return vmm.DeviceID("disk", d.Name)
}

// DeviceView is what planning looks at of a machine's devices.
type DeviceView struct {
	Plugger bool                    // the VM can change its devices
	Media   map[string]string       // what wanted volumes are, by name; none for one that no plugin knows
	Wires   map[string]Wire         // what wanted network interfaces are, by name
	Known   map[Device]DeviceMemory // what this life of the daemon knows
	Ready   map[string]bool         // volumes that their plugin has prepared in this life of the daemon, as they are wanted
	Times   DeviceTimes
}

// Wire is what a wanted network interface is.
type Wire struct {
	Identity   string // a guest keeps its device over a change that leaves it the same
	Definition string // hash of all that a plugin is told
}

// DeviceTimes are the times of Options that are about devices.
type DeviceTimes struct{ Repeat, Settle, Keep time.Duration }

// DeviceMemory is what this life of the daemon knows of a device. All of it may be forgotten.
type DeviceMemory struct {
	Missing time.Time // since when it is in the record and not wanted
	Asked   time.Time // when its guest was last asked to let go of it
	Applied bool      // the network plugin was told of it, and has not said since that anything changed
	Block   Block
	tries   int  // failures in a row
	told    bool // that the guest does not let go
}

// Block says why nothing is done about a device for a while.
type Block struct {
	Until           time.Time
	Reason, Message string
}

// Note says why a device is not as wanted.
type Note struct {
	Device          Device
	Reason, Message string
}

// Reasons of notes.
const (
	ReasonChanging      = "Changing"
	ReasonDetachPending = "DetachPending"
	ReasonRestartNeeded = "RestartNeeded"
)

// device returns what a step is about.
func (s Step) device() Device {
	return Device{NIC: s.Name == StepNICPrepare || s.Name == StepNICAttach || s.Name == StepNICDetach || s.Name == StepNICRelease, Name: s.Target}
}

// devicePlan gathers what is to be done about devices.
type devicePlan struct {
	View
	plan Plan
	run  bool // the guest runs; else there is no VMM at all
}

// planDevices compares the devices that are wanted with those that are there, while the guest runs or no VMM lives.
func planDevices(v View) Plan {
	p := devicePlan{View: v, plan: planUnwanted(v), run: v.Process == ProcessAlive}
	d := &v.Machine.Desired
	for _, vol := range d.Volumes {
		p.volume(vol.Name)
	}
	for _, n := range d.NICs {
		p.nic(n.Name)
	}
	return p.plan
}

// planUnwanted is the part of planDevices about devices that are not wanted any more.
func planUnwanted(v View) Plan {
	p := devicePlan{View: v, plan: Plan{Devices: true}, run: v.Process == ProcessAlive}
	d, r := &v.Machine.Desired, &v.Machine.Record
	for _, name := range sortedKeys(r.Volumes) {
		if _, wanted := d.Volume(name); !wanted {
			p.volume(name)
		}
	}
	for _, name := range sortedKeys(r.NICs) {
		if _, wanted := d.NIC(name); !wanted {
			p.nic(name)
		}
	}
	return p.plan
}

// wait has the machine looked at again after d at the latest.
func (p *devicePlan) wait(d time.Duration) {
	if d = max(d, time.Millisecond); p.plan.Wait == 0 || d < p.plan.Wait {
		p.plan.Wait = d
	}
}

func (p *devicePlan) note(d Device, reason, message string) {
	p.plan.Notes = append(p.plan.Notes, Note{Device: d, Reason: reason, Message: message})
}

// do adds the steps, unless something about the device has to be waited for.
func (p *devicePlan) do(d Device, steps ...StepName) {
	if len(steps) == 0 {
		return
	}
	if b := p.Known[d].Block; b.Until.After(p.Now) {
		p.note(d, b.Reason, b.Message)
		p.wait(b.Until.Sub(p.Now))
		return
	}
	for _, name := range steps {
		p.plan.Steps = append(p.plan.Steps, Step{Name: name, Target: d.Name})
	}
}

// leave leads a device out of the guest.
func (p *devicePlan) leave(d Device, wanted, boot, shown bool, since time.Time, step StepName) {
	known := p.Known[d]
	switch {
	case boot:
		p.note(d, ReasonRestartNeeded, "the disk that the guest runs from is changed when the machine is started the next time")
		return
	case !p.Plugger:
		p.note(d, ReasonRestartNeeded, "this VMM cannot change its devices; it is removed when the machine is started the next time")
		return
	}
	if left := known.Missing.Add(p.Times.Settle).Sub(p.Now); !wanted && since.IsZero() && left > 0 && left <= p.Times.Settle {
		p.wait(left)
		return
	}
	if left := known.Asked.Add(p.Times.Repeat).Sub(p.Now); shown && !since.IsZero() && left > 0 && left <= p.Times.Repeat {
		p.note(d, ReasonDetachPending, detachPending(since))
		p.wait(left)
		return
	}
	p.do(d, step)
}

func detachPending(since time.Time) string {
	return fmt.Sprintf("the guest is asked to let go of it since %s; it is asked again and again, and a reboot lets go", since.UTC().Format(time.RFC3339))
}

// volume plans for one volume.
func (p *devicePlan) volume(name string) {
	dev := Device{Name: name}
	rec, known := p.Machine.Record.Volumes[name]
	want, wanted := p.Machine.Desired.Volume(name)
	shown := p.run && slices.Contains(p.VM.Disks, dev.id())
	given, fit := p.run && (rec.Given || shown), wanted && p.fits(name, rec)
	// What the guest was asked to let go of it may yet let go of, although it is wanted again: that is seen through.
	leaving := shown && slices.Contains(p.VM.Leaving, dev.id())
	if known && given && (!fit || leaving) {
		before := len(p.plan.Steps)
		p.leave(dev, wanted, rec.Boot, shown, rec.AskedAt, StepVolumeDetach)
		if len(p.plan.Steps) == before && wanted && rec.Remote && !p.Ready[name] && p.sameMedium(name, rec) {
			p.do(dev, StepVolumePrepare) // it stays, so that what serves it is taken up again as it is
		}
		return
	}
	if known && !wanted && rec.Handle != "" && !rec.Doomed && !rec.RetiredAt.IsZero() {
		if left := rec.RetiredAt.Add(p.Times.Keep).Sub(p.Now); left > 0 { // a clock set back must not cost data
			p.wait(min(left, p.Times.Keep))
			return
		}
	}
	clear := p.clearVolume(name)
	steps := make([]StepName, 0, len(clear)+2)
	for _, s := range clear {
		steps = append(steps, s.Name)
	}
	switch {
	case !wanted:
	case !p.run:
		made := len(clear) == 0 && rec.Handle != ""
		if made && !rec.Remote && (volume.WantedBytes(want) > rec.SizeBytes || !rec.RetiredAt.IsZero()) {
			steps = append(steps, StepVolumePrepare)
		} else if len(clear) == 0 && rec.Held && rec.Remote { // other servers are not asked for anything until the next start
			steps = append(steps, StepVolumeRelease)
		}
	case !rec.Given || !shown || len(clear) > 0:
		if !p.Plugger {
			p.note(dev, ReasonRestartNeeded, "this VMM cannot change its devices; it is added when the machine is started the next time")
			break
		}
		steps = append(steps, StepVolumePrepare, StepVolumeAttach)
	case p.grows(dev, want, rec):
		steps = append(steps, StepVolumeResize)
	case rec.Remote && !p.Ready[name]: // so that its plugin takes up again what serves it, and watches over it
		steps = append(steps, StepVolumePrepare)
	}
	p.do(dev, steps...)
}

// grows reports whether a volume, or what the guest sees of it, is smaller than is wanted.
func (p *devicePlan) grows(dev Device, want machine.Volume, rec machine.VolumeRecord) bool {
	bytes := volume.WantedBytes(want)
	shown, told := p.VM.DiskBytes[dev.id()]
	if !told {
		shown = rec.GuestBytes
	}
	return bytes > rec.SizeBytes || bytes > shown
}

// clearVolume lists what makes room for the wanted volume of a name, or for none, once no VMM has what is there.
func (v View) clearVolume(name string) []Step {
	rec, known := v.Machine.Record.Volumes[name]
	_, wanted := v.Machine.Desired.Volume(name)
	release, remove := Step{Name: StepVolumeRelease, Target: name}, Step{Name: StepVolumeDelete, Target: name}
	switch {
	case !known:
		return nil
	case rec.Doomed:
		return []Step{remove}
	case wanted && v.fits(name, rec):
		return nil
	case wanted && v.sameMedium(name, rec), rec.Remote: // to be put in anew, or its data are not ours
		return []Step{release}
	case wanted || rec.Handle == "": // if its data are put away with the release, nothing is left to remove
		return []Step{release, remove}
	case !rec.RetiredAt.IsZero(): // its time is over
		return []Step{remove}
	}
	return []Step{release}
}

// sameMedium reports whether what is recorded is the medium that is wanted.
func (v View) sameMedium(name string, rec machine.VolumeRecord) bool {
	medium, ok := v.Media[name]
	return !ok || isSameMedium(rec.Identity, medium)
}

// fits reports whether a guest that has what is recorded has what is wanted, but for the size.
func (v View) fits(name string, rec machine.VolumeRecord) bool {
	want, _ := v.Machine.Desired.Volume(name)
	return v.sameMedium(name, rec) && !rec.Replug && !rec.Doomed && (rec.Identity == "" || rec.Device == want.Device)
}

// sameNIC reports whether a guest can keep the device that is recorded.
func (v View) sameNIC(name string, rec machine.NICRecord) bool {
	wire, ok := v.Wires[name]
	return !rec.Replug && (!ok || rec.Definition == "" || rec.Identity == wire.Identity)
}

// nic plans for one network interface.
func (p *devicePlan) nic(name string) {
	dev := Device{NIC: true, Name: name}
	rec, known := p.Machine.Record.NICs[name]
	_, wanted := p.Machine.Desired.NIC(name)
	shown := p.run && slices.Contains(p.VM.NICs, dev.id())
	given, fit := p.run && (rec.Given || shown), wanted && p.sameNIC(name, rec)
	leaving := shown && slices.Contains(p.VM.Leaving, dev.id())
	if known && given && (!fit || leaving) {
		p.leave(dev, wanted, false, shown, rec.AskedAt, StepNICDetach)
		return
	}
	var steps []StepName
	if known && (!wanted || rec.Plugin != "" && !fit) {
		if left := p.Known[dev].Missing.Add(p.Times.Settle).Sub(p.Now); !wanted && rec.AskedAt.IsZero() && left > 0 && left <= p.Times.Settle {
			p.wait(left)
			return
		}
		steps = append(steps, StepNICRelease)
	}
	switch {
	case !wanted || !p.run:
	case !rec.Given || !shown || len(steps) > 0:
		if !p.Plugger {
			p.note(dev, ReasonRestartNeeded, "this VMM cannot change its devices; it is added when the machine is started the next time")
			break
		}
		steps = append(steps, StepNICPrepare, StepNICAttach)
	case !p.Known[dev].Applied || rec.Definition != p.Wires[name].Definition:
		steps = append(steps, StepNICPrepare)
	}
	p.do(dev, steps...)
}

// givenAll reports whether a VMM was given exactly what is wanted.
func (v View) givenAll() bool {
	d, r := &v.Machine.Desired, &v.Machine.Record
	for name, rec := range r.Volumes {
		if _, wanted := d.Volume(name); rec.Given && (!wanted || !v.fits(name, rec)) {
			return false
		}
	}
	for name, rec := range r.NICs {
		if _, wanted := d.NIC(name); rec.Given && (!wanted || !v.sameNIC(name, rec)) {
			return false
		}
	}
	for i, vol := range bootFirst(d) {
		if rec := r.Volumes[vol.Name]; !rec.Given || rec.Boot != (i == 0) {
			return false
		}
	}
	return !slices.ContainsFunc(d.NICs, func(n machine.NetworkInterface) bool { return !r.NICs[n.Name].Given })
}
