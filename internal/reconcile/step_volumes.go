// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

// plugin returns the one volume plugin for v.
func (r *Reconciler) plugin(v machine.Volume) (volume.Plugin, error) {
	return volume.Pick(r.o.Volumes, v)
}

// pluginOf returns the plugin that made what is recorded.
func (r *Reconciler) pluginOf(rec machine.VolumeRecord) (volume.Plugin, error) {
	for _, p := range r.o.Volumes {
		if p.Name() == rec.Plugin {
			return p, nil
		}
	}
	return nil, machine.Errorf(machine.Unavailable, "volume plugin %q is not available now", rec.Plugin)
}

func (r *Reconciler) volumeRequest(m *machine.Machine, v machine.Volume) volume.Request {
	return volume.Request{
		MachineID: m.ID, Volume: v, Dir: filepath.Join(r.o.machineDir(m.ID), "volumes", v.Name),
	}
}

// goneRequest is a request about what is recorded, of which there may be no definition any more.
func (r *Reconciler) goneRequest(m *machine.Machine, name string) volume.Request {
	v, ok := m.Desired.Volume(name)
	if !ok {
		v = machine.Volume{Name: name}
	}
	return r.volumeRequest(m, v)
}

// pluginFailed gives what a plugin says a kind: what is not classified could not be done now.
func pluginFailed(err error, plugin string) error {
	if err == nil || machine.KindOf(err) != machine.Unknown {
		return err
	}
	return machine.Wrap(machine.Unavailable, err, plugin)
}

func (r *Reconciler) prepareVolume(ctx context.Context, m *machine.Machine, name string) error {
	v, ok := m.Desired.Volume(name)
	if !ok {
		return nil
	}
	before := m.Record.Volumes[name]
	prepared, err := r.prepare(ctx, m, v)
	if err != nil {
		return err
	}
	if before.Handle != "" && !before.Given && prepared.SizeBytes > before.SizeBytes {
		r.tellResized(m, name, prepared.SizeBytes)
	}
	if want := volume.WantedBytes(v); m.Record.VMM == nil && stopping(m) && prepared.SizeBytes < want {
		return &pendingError{
			reason: "VolumeTooSmall", wait: r.o.Resync,
			message: fmt.Sprintf("it has %d bytes, %d are wanted; it is grown when the machine runs", prepared.SizeBytes, want),
		}
	}
	return nil
}

func (r *Reconciler) tellResized(m *machine.Machine, name string, size int64) {
	r.o.Events.Event(m, Normal, "VolumeResized", "ResizeVolume", fmt.Sprintf("volume %s has %d bytes now", name, size))
}

// prepare makes a volume ready, grows it if a larger size is wanted, and keeps what a VMM has to be told of it.
func (r *Reconciler) prepare(ctx context.Context, m *machine.Machine, v machine.Volume) (volume.Prepared, error) {
	plugin, err := r.plugin(v)
	if err != nil {
		return volume.Prepared{}, err
	}
	before, identity := m.Record.Volumes[v.Name], medium(plugin, v)
	if before.Doomed || !isSameMedium(before.Identity, identity) {
		return volume.Prepared{}, machine.Errorf(machine.FailedPrecondition, "an earlier volume %s is not gone yet", v.Name)
	}
	if before.Given { // the guest knows it by the name that it had, until it lets go
		v.Device = before.Device
	}
	req := r.volumeRequest(m, v)
	req.Made = before.Handle != ""
	if v.LocalDisk != nil && v.LocalDisk.Image != nil && !req.Made {
		if req.Image, err = r.rootFS(ctx, m, *v.LocalDisk.Image); err != nil {
			return volume.Prepared{}, err
		}
	}
	begun := before
	begun.Plugin, begun.Identity, begun.Device, begun.Remote = plugin.Name(), identity, v.Device, v.LocalDisk == nil
	begun.Held, begun.RetiredAt = true, time.Time{}
	if begun != before { // durable before anything is made, so that whatever is made will be found and removed
		if err := r.recordVolume(ctx, m.ID, v.Name, begun); err != nil {
			return volume.Prepared{}, err
		}
	}
	prepared, err := plugin.Prepare(ctx, req)
	if err != nil {
		return volume.Prepared{}, pluginFailed(err, plugin.Name())
	}
	r.withDevices(m.ID, func(d *devices) { d.prepared[v.Name], d.from[v.Name] = prepared, v.Clone() })
	after := begun
	after.Handle, after.Path, after.Serial, after.SizeBytes = prepared.Handle, prepared.Path, prepared.Serial, prepared.SizeBytes
	if after == begun {
		return prepared, nil
	}
	if begun.Handle == "" {
		r.o.Events.Event(m, Normal, "VolumePrepared", "PrepareVolume", fmt.Sprintf("volume %s is ready", v.Name))
	}
	return prepared, r.recordVolume(ctx, m.ID, v.Name, after)
}

func (r *Reconciler) recordVolume(ctx context.Context, id, name string, v machine.VolumeRecord) error {
	return r.record(ctx, id, func(rec *machine.Record) {
		if rec.Volumes == nil {
			rec.Volumes = map[string]machine.VolumeRecord{}
		}
		rec.Volumes[name] = v
	})
}

// attachVolume plugs a prepared volume into the running guest. That the VMM may have it is durable before.
func (r *Reconciler) attachVolume(ctx context.Context, m *machine.Machine, name string) error {
	rec, known := m.Record.Volumes[name]
	if _, wanted := m.Desired.Volume(name); !wanted || !known {
		return nil
	}
	disk, err := r.vmDisk(m.ID, name)
	if err != nil {
		return err
	}
	_, plugger, err := r.plugger(ctx, m.ID)
	if err != nil {
		return err
	}
	// Boot stays as it is: the guest still runs from a disk that its VMM did not show for once.
	rec.Given, rec.GuestBytes, rec.AskedAt = true, rec.SizeBytes, time.Time{}
	if err := r.recordVolume(ctx, m.ID, name, rec); err != nil {
		return err
	}
	if err := plugger.AttachDisk(ctx, disk); err != nil {
		if refusedOutright(err) {
			err = errors.Join(err, r.updateVolume(ctx, m.ID, name, func(rec *machine.VolumeRecord) { rec.Given = false }))
		}
		return r.pluggerError(err)
	}
	r.o.Events.Event(m, Normal, "VolumeAttached", "AttachVolume", "volume "+name+" was attached")
	return nil
}

// refusedOutright reports whether a VMM has said that it has not taken a device, and will not as things are.
func refusedOutright(err error) bool {
	return machine.IsKind(err, machine.Exhausted) || machine.IsKind(err, machine.Unimplemented) || machine.IsKind(err, machine.Invalid)
}

// resizeVolume grows a medium under the running guest and tells the guest.
func (r *Reconciler) resizeVolume(ctx context.Context, m *machine.Machine, name string) error {
	v, wanted := m.Desired.Volume(name)
	if !wanted {
		return nil
	}
	prepared, err := r.prepare(ctx, m, v)
	if err != nil {
		return err
	}
	// A medium that only its VMM can grow is smaller than wanted here.
	bytes, id := volume.WantedBytes(v), Device{Name: name}.id()
	size := max(prepared.SizeBytes, bytes)
	if prepared.Fixed && prepared.SizeBytes < bytes {
		return &pendingError{
			reason: "VolumeTooSmall", wait: r.o.Resync,
			message: fmt.Sprintf("it has %d bytes, %d are wanted; it is grown elsewhere", prepared.SizeBytes, bytes),
		}
	}
	_, plugger, err := r.plugger(ctx, m.ID)
	switch {
	case err != nil:
	case prepared.Fixed:
		err = machine.Errorf(machine.Unimplemented, "volume %s has to be opened anew", name)
	default:
		err = plugger.ResizeDisk(ctx, id, size)
	}
	if machine.IsKind(err, machine.Unimplemented) {
		if r.o.ResizeByReplug && !m.Record.Volumes[name].Boot {
			return r.updateVolume(ctx, m.ID, name, func(rec *machine.VolumeRecord) { rec.Replug = true })
		}
		return &pendingError{
			reason: "RebootNeeded", wait: r.o.Resync,
			message: fmt.Sprintf("it has %d bytes now; the guest learns that when the machine is started the next time", size),
		}
	}
	if err != nil {
		return err
	}
	if err := r.updateVolume(ctx, m.ID, name, func(rec *machine.VolumeRecord) {
		rec.GuestBytes, rec.SizeBytes = size, max(rec.SizeBytes, size)
	}); err != nil {
		return err
	}
	obs, err := r.inspect(ctx, m.ID, r.session(m.ID))
	if err != nil {
		return err
	}
	if shown, told := obs.DiskBytes[id]; told && shown < bytes {
		return &pendingError{
			reason: "ResizePending", wait: r.o.DetachRepeat,
			message: fmt.Sprintf("the guest is told of %d bytes and shown %d", size, shown),
		}
	}
	r.tellResized(m, name, size)
	return nil
}

// updateVolume changes the record of a volume that has one.
func (r *Reconciler) updateVolume(ctx context.Context, id, name string, fn func(*machine.VolumeRecord)) error {
	return r.record(ctx, id, func(rec *machine.Record) {
		if v, ok := rec.Volumes[name]; ok {
			fn(&v)
			rec.Volumes[name] = v
		}
	})
}

func (r *Reconciler) detachVolume(ctx context.Context, m *machine.Machine, name string) error {
	return r.letGo(ctx, m, Device{Name: name}, m.Record.Volumes[name].AskedAt, func(asked time.Time, given bool) error {
		return r.updateVolume(ctx, m.ID, name, func(rec *machine.VolumeRecord) {
			rec.AskedAt, rec.Given, rec.Attached = asked, given, rec.Attached && given
		})
	})
}

// letGo asks the guest to let go of a device, and notes it once it has: only a VMM that was asked to and does not show
// the device any more has let go. The intent is durable before the guest is asked.
func (r *Reconciler) letGo(
	ctx context.Context, m *machine.Machine, dev Device, since time.Time, mark func(asked time.Time, given bool) error,
) error {
	_, plugger, err := r.plugger(ctx, m.ID)
	if err != nil {
		return r.pluggerError(err)
	}
	first := since.IsZero()
	if first {
		since = r.o.Now()
		if err := mark(since, true); err != nil {
			return err
		}
	}
	if dev.NIC {
		err = plugger.DetachNIC(ctx, dev.id())
	} else {
		err = plugger.DetachDisk(ctx, dev.id())
	}
	if err != nil {
		return r.pluggerError(err)
	}
	obs, err := r.inspect(ctx, m.ID, r.session(m.ID))
	if err != nil {
		return err
	}
	tell := false
	left := !slices.Contains(obs.Disks, dev.id()) && !slices.Contains(obs.NICs, dev.id())
	r.remember(m.ID, dev, func(known *DeviceMemory) {
		known.Asked = r.o.Now()
		tell = !first && !left && !known.told
		known.told = (known.told || tell) && !left
	})
	what, reason, action := "volume ", "VolumeDetached", "DetachVolume"
	if dev.NIC {
		what, reason, action = "network interface ", "NetworkInterfaceDetached", "DetachNetworkInterface"
	}
	if tell {
		r.o.Events.Event(m, Warning, ReasonDetachPending, action, what+dev.Name+": "+detachPending(since))
	}
	if !left {
		return nil
	}
	if err := mark(time.Time{}, false); err != nil {
		return err
	}
	r.o.Events.Event(m, Normal, reason, action, "the guest has let go of "+what+dev.Name)
	return nil
}

// mayHave reports whether the VMM of a machine may have a device that it was given.
func mayHave(m *machine.Machine, given bool) bool { return given && m.Record.VMM != nil }

// releaseVolume lets go of what a volume holds on the host. Data of a local disk that nobody wants are kept for a while.
func (r *Reconciler) releaseVolume(ctx context.Context, m *machine.Machine, name string) error {
	rec, known := m.Record.Volumes[name]
	if !known {
		return nil
	}
	if mayHave(m, rec.Given) {
		return machine.Errorf(machine.FailedPrecondition, "the VMM may still have volume %s", name)
	}
	if rec.Held {
		plugin, err := r.pluginOf(rec)
		if err != nil {
			return err
		}
		if err := plugin.Release(ctx, r.goneRequest(m, name)); err != nil {
			return pluginFailed(err, rec.Plugin)
		}
	}
	r.withDevices(m.ID, func(d *devices) { delete(d.prepared, name) })
	want, wanted := m.Desired.Volume(name)
	same := false
	if plugin, err := r.plugin(want); wanted {
		same = err != nil || isSameMedium(rec.Identity, medium(plugin, want))
	}
	if wanted && !same && !rec.Remote && rec.Handle != "" {
		if away, err := r.putAway(ctx, m, name, rec); away || err != nil {
			return err
		}
	}
	now := r.o.Now()
	return r.record(ctx, m.ID, func(record *machine.Record) {
		v := record.Volumes[name]
		v.Held, v.Given, v.Attached, v.Replug, v.AskedAt = false, false, false, false, time.Time{}
		switch {
		case same:
			v.Device = want.Device
		case v.Remote:
			delete(record.Volumes, name)
			return
		case v.RetiredAt.IsZero():
			v.RetiredAt = now
		}
		record.Volumes[name] = v
	})
}

// putAway keeps the data of a released volume whose name is taken by another one, as long as those of a volume that nobody
// wants, under a name of their own. false if its plugin cannot. When it was put away is durable before, so that the name is
// the same after a restart.
func (r *Reconciler) putAway(ctx context.Context, m *machine.Machine, name string, rec machine.VolumeRecord) (bool, error) {
	plugin, err := r.pluginOf(rec)
	if err != nil {
		return false, err
	}
	retirer, ok := plugin.(volume.Retirer)
	if !ok {
		return false, nil
	}
	rec.Held, rec.Given, rec.Boot, rec.Attached, rec.Replug, rec.AskedAt = false, false, false, false, false, time.Time{}
	if rec.RetiredAt.IsZero() {
		rec.RetiredAt = r.o.Now()
		if err := r.recordVolume(ctx, m.ID, name, rec); err != nil {
			return false, err
		}
	}
	as := retiredName(name, rec.RetiredAt)
	if err := retirer.Retire(ctx, r.goneRequest(m, name), r.goneRequest(m, as)); err != nil {
		return false, pluginFailed(err, rec.Plugin)
	}
	r.o.Events.Event(m, Normal, "VolumePutAway", "DetachVolume", fmt.Sprintf(
		"volume %s is another one now; the data of the earlier one are kept for %s as %s", name, max(r.o.KeepDetached, 0), as))
	return true, r.record(ctx, m.ID, func(record *machine.Record) {
		delete(record.Volumes, name)
		record.Volumes[as] = rec
	})
}

// retiredName is what a volume is called that was put away at a time.
func retiredName(name string, at time.Time) string {
	suffix := fmt.Sprintf(".retired-%d", at.UnixMilli())
	return name[:min(len(name), machine.MaxNameLength-len(suffix))] + suffix
}

// deleteVolume removes a volume with its data. That they are doomed is durable before: a volume of the same name then
// begins anew, and is not taken for one whose data are missing.
func (r *Reconciler) deleteVolume(ctx context.Context, m *machine.Machine, name string) error {
	rec, known := m.Record.Volumes[name]
	if !known {
		return nil
	}
	if mayHave(m, rec.Given) {
		return machine.Errorf(machine.FailedPrecondition, "the VMM may still have volume %s", name)
	}
	plugin, err := r.pluginOf(rec)
	if err != nil {
		return err
	}
	if !m.Desired.Deleting() && !rec.Doomed {
		if err := r.updateVolume(ctx, m.ID, name, func(v *machine.VolumeRecord) { v.Doomed, v.Handle = true, "" }); err != nil {
			return err
		}
	}
	if err := plugin.Delete(ctx, r.goneRequest(m, name)); err != nil {
		return pluginFailed(err, rec.Plugin)
	}
	r.withDevices(m.ID, func(d *devices) { delete(d.prepared, name) })
	if err := r.record(ctx, m.ID, func(rec *machine.Record) { delete(rec.Volumes, name) }); err != nil {
		return err
	}
	if !m.Desired.Deleting() {
		r.o.Events.Event(m, Normal, "VolumeDeleted", "DeleteVolume", "the data of the detached volume "+name+" were removed")
	}
	return nil
}
