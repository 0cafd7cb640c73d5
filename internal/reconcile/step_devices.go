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

	"github.com/opencontainers/go-digest"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// image returns the image the machine boots from, nil if it has none. Once an image was used the machine stays
// with that very one, whatever its tag says later.
func (r *Reconciler) image(ctx context.Context, m *machine.Machine) (*image.Image, error) {
	ref, _, ok := m.Desired.BootImage()
	if !ok {
		return nil, nil
	}
	return r.o.imageFor(ctx, m, ref)
}

func (r *Reconciler) resolveImage(ctx context.Context, m *machine.Machine) error {
	ref, _, _ := m.Desired.BootImage()
	img, err := r.awaitImage(ctx, m, ref)
	if err != nil {
		return err
	}
	if pin := m.Record.Image; pin != nil && pin.Ref == ref && pin.Digest == img.Digest.String() {
		return nil
	}
	return r.record(ctx, m.ID, func(rec *machine.Record) {
		rec.Image = &machine.ImageRecord{Ref: ref, Digest: img.Digest.String()}
	})
}

// awaitImage returns the image, or a *pendingError while it is pulled; the end of the pull then wakes the machine.
func (r *Reconciler) awaitImage(ctx context.Context, m *machine.Machine, ref string) (*image.Image, error) {
	r.waitForImage(ref, m.ID) // before asking, so that the end of the pull cannot be missed
	img, err := r.o.imageFor(ctx, m, ref)
	var pulling *image.PullingError
	var failed *image.PullFailedError
	switch {
	case errors.As(err, &pulling):
		return nil, &pendingError{reason: "PullingImage", message: "the image is being pulled", wait: r.o.Resync}
	case errors.As(err, &failed):
		return nil, &pendingError{
			reason: "PullImageFailed", message: "pull image: " + failed.Err.Error(),
			wait: max(failed.RetryAt.Sub(r.o.Now()), time.Second),
		}
	}
	r.waitNoMore(m.ID, ref)
	return img, err
}

// plugin returns the one volume plugin for v.
func (r *Reconciler) plugin(v machine.Volume) (volume.Plugin, error) {
	return volume.Pick(r.o.Volumes, v)
}

func (r *Reconciler) volumeRequest(m *machine.Machine, v machine.Volume) volume.Request {
	return volume.Request{
		MachineID: m.ID, Volume: v, Dir: filepath.Join(r.o.machineDir(m.ID), "volumes", v.Name),
	}
}

func (r *Reconciler) prepareVolume(ctx context.Context, m *machine.Machine, name string) error {
	i := slices.IndexFunc(m.Desired.Volumes, func(v machine.Volume) bool { return v.Name == name })
	if i < 0 {
		return nil
	}
	v := m.Desired.Volumes[i]
	plugin, err := r.plugin(v)
	if err != nil {
		return err
	}
	req := r.volumeRequest(m, v)
	before, known := m.Record.Volumes[name]
	req.Made = before.Path != ""
	if v.LocalDisk != nil && v.LocalDisk.Image != nil && !req.Made {
		if req.Image, err = r.rootFS(ctx, m, *v.LocalDisk.Image); err != nil {
			return err
		}
	}
	if !known { // durable before anything is made, so that whatever is made will be found and removed
		before = machine.VolumeRecord{Plugin: plugin.Name()}
		if err := r.recordVolume(ctx, m.ID, name, before); err != nil {
			return err
		}
	}
	prepared, err := plugin.Prepare(ctx, req)
	if err != nil {
		return err
	}
	after := machine.VolumeRecord{
		Plugin: plugin.Name(), Handle: prepared.Handle, Path: prepared.Path, Serial: prepared.Serial,
		SizeBytes: prepared.SizeBytes, Attached: before.Attached,
	}
	if after == before {
		return nil
	}
	if before.Path == "" {
		r.o.Events.Event(m, Normal, "VolumePrepared", "PrepareVolume", fmt.Sprintf("volume %s is ready", name))
	}
	return r.recordVolume(ctx, m.ID, name, after)
}

func (r *Reconciler) recordVolume(ctx context.Context, id, name string, v machine.VolumeRecord) error {
	return r.record(ctx, id, func(rec *machine.Record) {
		if rec.Volumes == nil {
			rec.Volumes = map[string]machine.VolumeRecord{}
		}
		rec.Volumes[name] = v
	})
}

func (r *Reconciler) rootFS(ctx context.Context, m *machine.Machine, ref string) (*volume.BootImage, error) {
	img, err := r.awaitImage(ctx, m, ref)
	if err != nil {
		return nil, err
	}
	if img.RootFS == nil {
		return nil, machine.Errorf(machine.Invalid, "image %s has no root file system layer", ref)
	}
	return &volume.BootImage{Path: img.RootFS.Path, SizeBytes: img.RootFS.Size, Digest: img.RootFS.Digest.String()}, nil
}

// imageFor returns the pinned image for the boot image, and asks the cache for any other volume's.
func (o *Options) imageFor(ctx context.Context, m *machine.Machine, ref string) (*image.Image, error) {
	if pin := m.Record.Image; pin != nil && pin.Ref == ref {
		return o.Images.GetPinned(ctx, ref, digest.Digest(pin.Digest))
	}
	return o.Images.Get(ctx, ref)
}

func (r *Reconciler) deleteVolume(ctx context.Context, m *machine.Machine, name string) error {
	rec := m.Record.Volumes[name]
	for _, plugin := range r.o.Volumes {
		if plugin.Name() != rec.Plugin {
			continue
		}
		v := machine.Volume{Name: name}
		if i := slices.IndexFunc(m.Desired.Volumes, func(v machine.Volume) bool { return v.Name == name }); i >= 0 {
			v = m.Desired.Volumes[i]
		}
		if err := plugin.Delete(ctx, r.volumeRequest(m, v)); err != nil {
			return err
		}
		return r.record(ctx, m.ID, func(rec *machine.Record) { delete(rec.Volumes, name) })
	}
	return machine.Errorf(machine.Unavailable, "volume plugin %q is not available now", rec.Plugin)
}

func (r *Reconciler) nicRequest(m *machine.Machine, nic machine.NetworkInterface) network.Request {
	req := network.Request{
		MachineID: m.ID, Interface: network.Interface(nic), MAC: machine.MAC(m.ID, nic.Name),
		Queues: int(max(m.Desired.Resources.CPUs, 1)),
	}
	if m.Desired.GuestConfig != nil {
		req.Hostname = m.Desired.GuestConfig.Hostname
	}
	return req
}

func (r *Reconciler) prepareNIC(ctx context.Context, m *machine.Machine, name string) error {
	i := slices.IndexFunc(m.Desired.NICs, func(n machine.NetworkInterface) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	before, known := m.Record.NICs[name]
	if known && before.Plugin != r.o.Network.Name() { // the configuration was changed: the record must not lose what there is
		if err := r.removeNIC(ctx, m, before.Plugin, name); err != nil {
			return err
		}
		known = false
	}
	if !known {
		before = machine.NICRecord{Plugin: r.o.Network.Name(), Handle: before.Handle, MAC: before.MAC} // an empty handle would be told
		if err := r.recordNIC(ctx, m.ID, name, before); err != nil {
			return err
		}
	}
	result, err := r.o.Network.Apply(ctx, r.nicRequest(m, m.Desired.NICs[i]))
	if err != nil {
		return err
	}
	if result.State != network.StateReady {
		return &pendingError{reason: "NetworkInterfaceNotReady", message: name + ": " + result.Message, wait: r.o.Resync}
	}
	after := machine.NICRecord{
		Plugin: r.o.Network.Name(), Handle: result.Handle, MAC: result.MAC, Attached: before.Attached,
	}
	if after == before {
		return nil
	}
	return r.recordNIC(ctx, m.ID, name, after)
}

func (r *Reconciler) recordNIC(ctx context.Context, id, name string, n machine.NICRecord) error {
	return r.record(ctx, id, func(rec *machine.Record) {
		if rec.NICs == nil {
			rec.NICs = map[string]machine.NICRecord{}
		}
		rec.NICs[name] = n
	})
}

func (r *Reconciler) releaseNIC(ctx context.Context, m *machine.Machine, name string) error {
	if err := r.removeNIC(ctx, m, m.Record.NICs[name].Plugin, name); err != nil {
		return err
	}
	return r.record(ctx, m.ID, func(rec *machine.Record) { delete(rec.NICs, name) })
}

// removeNIC has the plugin that made an interface remove it.
func (r *Reconciler) removeNIC(ctx context.Context, m *machine.Machine, plugin, name string) error {
	p, ok := r.o.Networks[plugin]
	if !ok {
		return machine.Errorf(machine.Unavailable, "network plugin %q is not available now", plugin)
	}
	left, err := p.Delete(ctx, network.Ref{MachineID: m.ID, Name: name})
	if err == nil && left.State != network.StateAbsent {
		return &pendingError{reason: "NetworkInterfaceLeaving", message: name + ": " + left.Message, wait: r.o.Resync}
	}
	return err
}
