// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
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
